"""The simulated fleet: nodes and free capacity, faults, prices, and the locality of a placement.

Used by the rest of `sim`, the benchmarks and the command line.
"""
