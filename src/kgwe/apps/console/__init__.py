"""The console: pages in a browser and the HTTP API behind them. Each user sees what RBAC of Kubernetes allows.

It reads the cluster by informers, answers from memory, and writes nothing but TokenReviews and SubjectAccessReviews.
"""
