"""The Kubernetes client: requests, informers, work queues, leases, Events and evictions.

A library: it knows nothing of placement. The apps import it.
"""
