"""Measurements of benchmarks on a cluster: audit log, counters, watches, and the summary of a report.

Used by the rest of `bench.cluster`.
"""
