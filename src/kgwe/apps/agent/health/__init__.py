"""Health of the node's GPUs: monitoring, node conditions and the reported status.

Part of the agent; imported only by it.
"""
