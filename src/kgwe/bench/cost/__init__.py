"""Benchmarks of costing. Imported by `kgwe.cli.bench` only."""
