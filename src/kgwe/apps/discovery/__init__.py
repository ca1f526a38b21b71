"""Discovery of GPU nodes: GPUNode objects, their age, and live queries to agents.

Built on `agentapi` and `kube`; only the command line imports it.
"""
