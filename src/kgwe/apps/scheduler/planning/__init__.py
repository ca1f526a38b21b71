"""The planning cycle: the queue is planned on a copy of the fleet and committed to the ledger.

Part of the scheduler; the leader loop, reconcilers and disruption import it.
"""
