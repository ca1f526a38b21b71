"""The scheduler: plans GPUWorkloads and gangs, answers kube-scheduler, recovers and preempts.

Its layers are a contract in pyproject.toml; no other app imports it.
"""
