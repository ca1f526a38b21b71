"""Workloads and the objects that run them: runs, plans, annotations, signatures, policies.

Built on `kube`; the other packages of `cluster` and the apps import it.
"""
