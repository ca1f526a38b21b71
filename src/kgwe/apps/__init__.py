"""The processes of KGWE: scheduler, MIG controller, agent, advisor, discovery and what-if.

Apps do not import each other; what several need lives in `cluster`, `agentapi` or `kube`.
"""
