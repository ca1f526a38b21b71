"""The advisor: compares the placements of the current scheduler with those KGWE would choose. It never writes.

Built on `cluster.offline`; only the command line imports it.
"""
