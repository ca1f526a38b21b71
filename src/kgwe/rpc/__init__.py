"""gRPC of all services: certificates, calls of clients and the server.

The protocols and the apps that serve them import it.
"""
