"""The agent, a process on every GPU node: discovery, health, metrics, MIG, MPS and the device plugin.

Built on `hardware`, `agentapi` and `kube`; only the command line imports it.
"""
