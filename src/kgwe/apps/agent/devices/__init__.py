"""The device plugin: which devices the kubelet gets, and what pods hold.

Part of the agent; imported only by it.
"""
