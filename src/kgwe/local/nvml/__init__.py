"""A simulated NVML: a shared library in C that serves a machine from a file.

Used by the local cluster, the demo and the tests.
"""
