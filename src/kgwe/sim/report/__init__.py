"""Results of simulations: metrics, comparisons, sensitivity, charts and the HTML page.

Used by the simulator's loop, the benchmarks and the command line.
"""
