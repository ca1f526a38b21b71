"""Fleet models: files that describe a simulated fleet, and the inventory and readings derived from them.

Pure. Used by the local cluster, the simulator, the benchmarks and `kgwe simulate --from-cluster`.
"""
