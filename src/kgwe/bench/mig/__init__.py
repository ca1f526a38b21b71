"""Benchmark of MIG policies, beside the optimum.

Used by `kgwe bench mig`.
"""
