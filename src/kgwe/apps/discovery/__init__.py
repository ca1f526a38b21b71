"""Discovery of GPU nodes: GPUNode objects, how fresh they are, and agents asked directly.

Built on `agentapi` and `kube`; only the command line imports it.
"""
