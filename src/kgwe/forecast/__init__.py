"""Forecasts: run time, memory, demand, interference, workload class and waste.

Pure: no I/O, no clock.
"""
