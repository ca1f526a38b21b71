"""Metrics of the node: samples, the exporter and the telemetry stream.

Part of the agent; imported only by it.
"""
