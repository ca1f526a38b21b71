"""Benchmarks of the optimizer on a local cluster. Imported by `kgwe.cli.bench` only."""
