"""Benchmarks of costing."""
