"""The optimizer's gRPC protocol: its calls and the client.

The optimizer, the scheduler and the command line import it.
"""
