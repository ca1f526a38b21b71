"""The process on every GPU node: discovery, health, metrics, the device plugin, MIG and MPS.

`main` builds it; `features` adds what the settings enable through `hooks`.
Imported by `kgwe.cli` and `kgwe.local` only.
"""
