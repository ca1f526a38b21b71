"""Benchmark of the waste detector: simulated pods of known use, gaps, speed, and published usage."""
