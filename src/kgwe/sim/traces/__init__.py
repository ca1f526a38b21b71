"""Jobs to simulate: published traces, generated mixes, and recorded decisions.

Used by the simulator, the benchmarks and the command line.
"""
