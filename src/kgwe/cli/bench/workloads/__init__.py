"""Benchmarks of what is forecast about workloads."""
