"""Benchmark of recommendations: made by the optimizer, followed on a local cluster, and metered before and after.

Imported by `kgwe.cli.bench` only.
"""
