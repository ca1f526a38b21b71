"""Brings the schema of a database to the revision of this program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from kgwe import errors
from kgwe.store.schema import METADATA, VERSION_TABLE

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from kgwe.store.address import Address


@dataclass(frozen=True, slots=True)
class Schema:
    """What a database holds: its tables, its revisions, and the process that writes it."""

    name: str
    """A word for messages: history or ledger."""
    scripts: Path
    metadata: sa.MetaData
    version_table: str
    """Names the revision; several schemas in one PostgreSQL database have one each."""
    lock: int
    """The number of the writer's advisory lock in PostgreSQL."""
    process: str
    """The command that creates it."""


#: The schema of the optimizer. The lock is "hist".
HISTORY: Final = Schema(
    "history", Path(__file__).parent / "migrations", METADATA, VERSION_TABLE, 0x68697374, "kgwe optimizer"
)


def migrate(connection: Connection, address: Address, schema: Schema = HISTORY) -> None:
    """Upgrade the schema in the transaction of the connection; refuse a database that a newer program wrote."""
    current = read_revision(connection, address, schema)
    config = _make_config(schema)
    scripts = ScriptDirectory.from_config(config)
    head = scripts.get_current_head()
    if current == head:
        return
    known = {script.revision for script in scripts.walk_revisions()}
    if current is not None and current not in known:
        raise _newer(address, current)
    upgrade_to(connection, schema, "head")


def upgrade_to(connection: Connection, schema: Schema, revision: str) -> None:
    """Upgrade the schema to a revision in the transaction of the connection."""
    config = _make_config(schema)
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def check_revision(connection: Connection, address: Address, schema: Schema = HISTORY) -> None:
    """Refuse to read a schema that is not the one of this program. A reader never migrates."""
    current = read_revision(connection, address, schema)
    scripts = ScriptDirectory.from_config(_make_config(schema))
    if current == scripts.get_current_head():
        return
    if current is None or current in {script.revision for script in scripts.walk_revisions()}:
        raise errors.Transient(
            f"the store {address} has no {schema.name} of this version yet: start `{schema.process}`, which creates it"
        )
    raise _newer(address, current)


def read_revision(connection: Connection, address: Address, schema: Schema = HISTORY) -> str | None:
    """Return the revision of the schema; None for an empty database. Refuse the database of another program."""
    names = set(sa.inspect(connection).get_table_names())
    if schema.version_table in names:
        query = sa.text(f"SELECT version_num FROM {schema.version_table}")  # noqa: S608 -- a constant
        revision = connection.execute(query).scalar()
        return None if revision is None else str(revision)
    foreign = names if address.path else names & set(schema.metadata.tables)
    if foreign:
        raise errors.Permanent(
            f"{address} belongs to another program (tables {', '.join(sorted(foreign)[:3])}): name another database"
        )
    return None


def _newer(address: Address, revision: str) -> errors.Permanent:
    return errors.Permanent(
        f"a newer version of KGWE wrote the store {address} (schema {revision}):"
        " start that version, or name another store"
    )


def _make_config(schema: Schema) -> Config:
    config = Config()
    config.set_main_option("script_location", str(schema.scripts).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
