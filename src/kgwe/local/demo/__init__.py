"""`kgwe demo`: the local cluster with KGWE installed and sample workloads.

Used by the command line.
"""
