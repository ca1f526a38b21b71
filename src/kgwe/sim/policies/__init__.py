"""Placement policies that the simulator can run, by name.

Used by the simulator, the benchmarks and the command line.
"""
