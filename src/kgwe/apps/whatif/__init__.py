"""`kgwe explain` and `kgwe simulate --from-cluster`: answers from one reading of the API, without writes.

Built on `cluster.offline`; only the command line imports it.
"""
