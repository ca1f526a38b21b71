"""Linux interfaces: cgroups, sysfs, marked processes and compute mode.

Only the agent and the local cluster import it.
"""
