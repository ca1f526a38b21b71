"""The cost engine: meters a cluster from watches into the ledger, and reports what it spends."""
