"""The GPUNode object: its status, and writing it to the API server.

Part of the agent; imported only by it.
"""
