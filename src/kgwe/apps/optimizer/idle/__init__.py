"""Acting on idle GPUs: notices, suspensions, restores, and the ledger of what they saved.

Imported by the optimizer only.
"""
