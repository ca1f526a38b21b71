"""Pinning of pods to their seats.

Part of the scheduler; the leader loop imports it.
"""
