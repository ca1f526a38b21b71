"""The kubelet's unix sockets: the devices that pods hold, and the device plugin's registration.

Only the agent and the local cluster import it.
"""
