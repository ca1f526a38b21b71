"""The nouns of KGWE: GPUs, network, health, devices, readings. Pure data and arithmetic.

Imports only `kgwe.errors`; every other package may import it.
"""
