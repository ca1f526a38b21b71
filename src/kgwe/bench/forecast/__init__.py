"""Benchmarks of forecasts: run times and demand, on recorded data."""
