"""What KGWE knows of a cluster: workloads, gangs, nodes, runs and pods. No process, no loop.

Built on `kube` and `placement`; the apps import it.
"""
