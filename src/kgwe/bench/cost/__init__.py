"""Benchmarks of the cost engine: the ledger, budgets, and the split of a node's price."""
