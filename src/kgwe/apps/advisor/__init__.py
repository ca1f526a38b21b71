"""The advisor: what the placements of the present scheduler cost, beside those KGWE would choose. Never writes.

Built on `cluster.offline`; only the command line imports it.
"""
