"""Externally created gangs and queued pods: their members, their life, and their seats.

Built on `cluster.registry` and `cluster.workload`; used by `cluster.state`, `cluster.offline` and the apps.
"""
