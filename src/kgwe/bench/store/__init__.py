"""Benchmark of the history store: writing, reading and forgetting minutes. Imported by `kgwe.cli.bench` only."""
