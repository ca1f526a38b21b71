"""Metrics of dcgm-exporter: fetching and reading them.

Only the agent and the local cluster import it.
"""
