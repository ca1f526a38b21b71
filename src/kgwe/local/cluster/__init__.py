"""The local control plane: its components, certificates, start and supervision.

Used by the command line, the benchmarks and the tests.
"""
