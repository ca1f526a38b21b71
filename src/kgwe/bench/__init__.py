"""Benchmarks: reproducible, with baselines, one JSON shape.

Only the command line imports it.
"""
