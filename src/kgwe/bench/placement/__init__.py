"""Benchmarks of placement: engine, gangs, queue, packing and fragmentation.

Used by `kgwe bench`.
"""
