"""Connecting to PostgreSQL, and the lock that makes a process the only writer of a database."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from kgwe import errors

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

    from kgwe.store.address import Address

# "KGWE": advisory locks have numbers, not names. The second number is that of the schema.
_LOCK: Final = 0x4B475745
_CONNECT_TIMEOUT_S: Final = 5
_SILENCE_MS: Final = 10_000
_MAX_NAME: Final = 63

_HOLDER: Final = sa.text(
    "SELECT a.application_name, a.client_addr::text, a.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE l.locktype = 'advisory' AND l.granted AND l.classid = :first AND l.objid = :second"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def make_engine(address: Address, *, read_only: bool) -> Engine:
    """Return an engine that notices a dead server within seconds."""
    options: dict[str, object] = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "application_name": f"kgwe process {os.getpid()} on {socket.gethostname()}"[:_MAX_NAME],
        "keepalives_idle": _CONNECT_TIMEOUT_S,
        "tcp_user_timeout": _SILENCE_MS,
    }
    if read_only:
        options["options"] = "-c default_transaction_read_only=on"
    try:
        return sa.create_engine(address.url, poolclass=sa.pool.NullPool, connect_args=options)
    except ImportError as exc:
        raise errors.Permanent("a store in PostgreSQL needs psycopg: install kgwe[postgres]") from exc


def take_lock(connection: Connection, address: Address, number: int) -> None:
    """Take the writer's lock for as long as this connection lives; Transient if another process has it."""
    first, second = _LOCK, number
    taken = connection.execute(
        sa.text("SELECT pg_try_advisory_lock(:first, :second)"), {"first": first, "second": second}
    )
    if taken.scalar():
        return
    holder = connection.execute(_HOLDER, {"first": first, "second": second}).first()
    name = "its name is unknown" if holder is None else f"{holder[0] or 'unnamed'} from {holder[1] or 'this host'}"
    raise errors.Transient(
        f"another process writes the store {address} ({name}): a store has one writer, so stop that process"
        " or use another database"
    )
