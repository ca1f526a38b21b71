"""Answers about the cluster from one reading of the API: `kgwe explain` and `kgwe whatif`. Never writes.

Built on `cluster.offline`; only the command line imports it.
"""
