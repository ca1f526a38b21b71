"""The agent's gRPC protocol: messages, TLS files and the client.

The agent serves it; discovery and the command line call it.
"""
