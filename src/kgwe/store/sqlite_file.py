"""Opening a SQLite file: checks before the first write, and the settings of a connection."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from kgwe import errors
from kgwe.store.failures import damaged

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.engine import Connection, Engine

    from kgwe.store.address import Address

_MAGIC: Final = b"SQLite format 3\x00"
_HEADER: Final = 100
_LARGEST_PAGE: Final = 65536
# A write-ahead log that grew in one large batch shrinks again to this size.
_LOG_BYTES: Final = 64 << 20


def make_engine(path: Path, *, read_only: bool, busy_timeout_s: float) -> Engine:
    """Return an engine for the file. Transactions begin where SQLAlchemy begins them, also around DDL."""

    def connect() -> sqlite3.Connection:
        mode = "ro" if read_only else "rwc"
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode={mode}",
            uri=True,
            timeout=busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _configure(connection, read_only=read_only)
        except BaseException:
            connection.close()
            raise
        return connection

    engine = sa.create_engine("sqlite+pysqlite://", creator=connect, poolclass=sa.pool.NullPool)

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer takes the write lock at once: two readers that both want to write would block each other.
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine


def _configure(connection: sqlite3.Connection, *, read_only: bool) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
        return
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")


def check_file(address: Address, path: Path) -> None:
    """Refuse a file that is not a SQLite database, or shorter than its header says. An empty file is a new store."""
    log = path.with_name(f"{path.name}-wal")
    size, log_size = _measure(path), _measure(log)
    if size == 0 and log_size:
        # SQLite would delete the log, and the last writes with it.
        raise errors.Permanent(
            f"the store {address} is missing, but {log} has its last writes: put the file back, or move {log} away too"
        )
    if size == 0:
        return
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except OSError:
        # SQLite reports it with its own code.
        return
    if not header.startswith(_MAGIC) or len(header) < _HEADER:
        raise damaged(address, "its header is not that of a SQLite database")
    expected = _read_page_size(header) * int.from_bytes(header[28:32], "big")
    # A checkpoint that was interrupted leaves the header ahead of the file; the log has the missing pages.
    if size < expected and not log_size:
        raise damaged(address, f"it has {size} of {expected} bytes")


def _measure(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_page_size(header: bytes) -> int:
    size = int.from_bytes(header[16:18], "big")
    return _LARGEST_PAGE if size == 1 else size
