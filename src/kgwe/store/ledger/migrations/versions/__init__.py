"""Revisions of the ledger's schema, one module each. A published revision never changes."""
