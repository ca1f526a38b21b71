"""The state of the whole cluster, fed by informers.

Built on the other packages of `cluster`; `cluster.offline` and the apps import it.
"""
