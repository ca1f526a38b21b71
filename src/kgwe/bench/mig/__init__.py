"""Benchmark of MIG policies, compared with the optimum.

Used by `kgwe bench mig`.
"""
