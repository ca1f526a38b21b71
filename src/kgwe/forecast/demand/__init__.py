"""Forecasts of demand: GPUs in use or submitted, some steps ahead, with intervals."""
