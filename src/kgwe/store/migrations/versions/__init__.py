"""Revisions of the schema, one module each. A published revision never changes."""
