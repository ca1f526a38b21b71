"""The MIG controller: decides the layouts of the GPUs that MIGStrategies select.

Built on `cluster.workload` and `sharing`; only the command line imports it.
"""
