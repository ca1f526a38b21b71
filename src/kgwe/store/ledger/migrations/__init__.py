"""Migrations of the ledger's schema: an alembic environment that needs no ini file."""
