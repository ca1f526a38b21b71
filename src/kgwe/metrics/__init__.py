"""Metric sources: what the devices of pods do, read from exporters or from Prometheus.

Apps and the local cluster import it.
"""
