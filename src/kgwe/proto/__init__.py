"""Protocols: .proto files and the code generated from them by `make proto`.

Imports nothing of KGWE; `agentapi`, `hardware.kubelet` and `kube.transport` import it.
"""
