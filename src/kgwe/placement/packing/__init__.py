"""MixFit: online packing of GPU shares by prices of free capacity. Pure; strategies and simulators import it."""
