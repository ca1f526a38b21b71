"""Metrics of the node: samples, the exporter, and the data about processes and pods.

Part of the agent; imported only by it.
"""
