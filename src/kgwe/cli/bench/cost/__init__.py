"""Benchmarks of the cost engine."""
