"""Benchmarks of what is forecast about workloads: interference, class and placement hints."""
