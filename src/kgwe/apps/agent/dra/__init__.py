"""Dynamic resource allocation on the node: publishes devices, and prepares the devices of ResourceClaims.

Part of the agent; imported only by it.
"""
