"""Benchmarks of scaling: nodes kept powered, jobs on spot, and the purchase of nodes."""
