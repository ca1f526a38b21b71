"""Reproducible benchmarks with baselines and one JSON format.

Only the command line imports it.
"""
