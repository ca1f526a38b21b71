"""Nodes, workloads, runs and pods as the API shows them, and the ledger in which they are counted.

Built on `cluster.workload`; used by the other packages of `cluster` and by the apps.
"""
