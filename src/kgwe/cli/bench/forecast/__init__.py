"""Benchmarks of forecasts: run times, demand and estimated starts."""
