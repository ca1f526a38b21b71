"""The simulated fleet: its nodes and what is free, faults, prices, and the locality of a placement.

Used by the rest of `sim`, the benchmarks and the command line.
"""
