"""The HTTP API: authentication and authorization by Kubernetes, routes and their OpenAPI document, and the server.

Apps serve it. Each route is declared once, with the types of its query and its reply.
"""
