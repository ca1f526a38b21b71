"""Devices of the kubelet: what a node advertises, what pods hold, shares, and assignments.

Pure; the agent, the translators and placement import it.
"""
