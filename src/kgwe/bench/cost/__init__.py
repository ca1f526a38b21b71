"""Benchmarks of the cost engine: the ledger, and the split of a node's price."""
