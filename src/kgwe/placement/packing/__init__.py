"""MixFit: online packing of GPUs and shares by prices of free capacity. Pure.

The strategies of `placement` and the simulator import it.
"""
