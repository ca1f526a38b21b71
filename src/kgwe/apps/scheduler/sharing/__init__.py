"""GPUSharingPolicies: which workloads get a part of a GPU.

Built on `cluster` and `forecast`; the leader, its reports and the main module of the scheduler import it.
"""
