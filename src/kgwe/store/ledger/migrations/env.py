"""The environment that alembic executes: runs the revisions on the connection that `kgwe.store.migration` passes."""

from __future__ import annotations

from alembic import context

from kgwe.store.ledger.schema import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    # One transaction for all: a process that is killed leaves the old schema or the new one.
    transactional_ddl=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
