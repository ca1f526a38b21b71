"""Applies MIG layouts to the node's GPUs.

Part of the agent; imported only by it.
"""
