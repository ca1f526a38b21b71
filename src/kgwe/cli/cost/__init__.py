"""Commands that read the ledger of the cost engine."""
