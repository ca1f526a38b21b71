"""Metrics of the node: samples, the exporter, and what is gathered around the driver for them.

Part of the agent; imported only by it.
"""
