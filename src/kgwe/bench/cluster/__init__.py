"""Benchmarks on a local cluster: scenarios, load, measurements and audits.

Used by `kgwe bench cluster`.
"""
