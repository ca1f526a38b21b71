"""MPS daemons: the desired ones, their control protocol and their processes.

Only the agent and the local cluster import it.
"""
