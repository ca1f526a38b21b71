"""Checkpoints before work is stopped: the call that a pod declares, orders to agents, and their reports.

Apps import it: the scheduler, defragmentation and the autoscaler order, the agents deliver.
"""
