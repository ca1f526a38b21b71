"""Migrations of the history's schema: an alembic environment that needs no ini file."""
