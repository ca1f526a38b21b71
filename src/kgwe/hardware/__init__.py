"""Access to the hardware and the node: the driver, MPS, DCGM, the kubelet and Linux. A doer: it makes no decisions.

Built on `model`; only the agent and the local cluster import it.
"""
