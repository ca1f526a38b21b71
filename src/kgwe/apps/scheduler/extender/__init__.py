"""The scheduler extender that kube-scheduler calls: HTTP and the handlers.

Part of the scheduler; its main module imports it.
"""
