"""The device plugin: the devices that the kubelet gets, and those that pods hold.

Part of the agent; imported only by it.
"""
