"""Binaries of the control plane: finding them or building them from source.

Used by `local.cluster`.
"""
