"""Benchmarks of the agent and of the informers.

Used by `kgwe bench`.
"""
