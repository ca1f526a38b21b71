"""Benchmark of the scheduler extender, with recorded calls.

Used by `kgwe bench extender`.
"""
