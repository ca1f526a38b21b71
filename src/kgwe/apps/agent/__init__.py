"""The agent, which runs on each GPU node: discovery, health, metrics, the device plugin, MIG and MPS.

`features` builds the features that the settings enable, and `main` the agent from them. Imported by `kgwe.cli` and
`kgwe.local` only.
"""
