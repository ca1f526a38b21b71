"""The simulated GPU fleet on the local cluster: nodes, pods, devices, faults and meters.

Used by the command line, the benchmarks and the tests.
"""
