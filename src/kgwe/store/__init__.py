"""Stores: histories in SQLite or PostgreSQL, with migrations.

One process writes each database.
"""
