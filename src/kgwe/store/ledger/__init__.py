"""The ledger of the cost engine: price files, segments with their roll-ups in a database of their own, and reports."""
