"""The agent, which runs on each GPU node: discovery, health, metrics, the device plugin, MIG and MPS.

`main` builds it; `features` adds the features that the settings enable. Imported by `kgwe.cli` and `kgwe.local` only.
"""
