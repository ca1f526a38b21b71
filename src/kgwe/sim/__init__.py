"""The simulator: the deciders driven by traces in simulated time, without a cluster.

Built on `records`, `placement` and `sharing`. Only the benchmarks and the command line import it.
"""
