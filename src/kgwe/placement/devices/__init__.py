"""Which devices of a node a container gets: whole GPUs and shares.

Built on `placement.gpuset`; the agent's device plugin and the local cluster import it.
"""
