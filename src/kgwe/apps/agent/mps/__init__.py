"""Starts and stops MPS daemons as ordered.

Part of the agent; imported only by it.
"""
