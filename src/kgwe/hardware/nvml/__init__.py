"""NVIDIA's management library: devices, readings, MIG and events, in a worker process.

Only the agent and its benchmark import it.
"""
