"""Recovery from failures, preemption, and the eviction of pods.

Part of the scheduler; the leader loop imports it.
"""
