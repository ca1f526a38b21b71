"""The binaries of the control plane: found on the machine, or built from source.

Used by `local.cluster`.
"""
