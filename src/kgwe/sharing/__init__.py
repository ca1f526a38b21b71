"""How GPUs are shared: MIG layouts, MPS and time-slicing. Pure.

Built on `model`; `kube.translate`, the MIG controller and the agent import it.
"""
