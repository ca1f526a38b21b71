"""Workloads and the objects that run them: manifests, runs, annotations, policies.

Built on `kube`; the other packages of `cluster` and the apps import it.
"""
