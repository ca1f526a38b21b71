"""One database and the only connection to it: opening, transactions, and connecting again after a failure."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from kgwe import errors
from kgwe.store import migration, postgresql, sqlite_file
from kgwe.store.address import Address, parse_address
from kgwe.store.failures import translated
from kgwe.store.file_lock import FileLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection, Engine

    from kgwe.store.migration import Schema

BUSY_TIMEOUT_S: Final = 5.0


class Database:
    """A database with one writer. Every operation is one transaction; after an error the next one starts clean.

    Threads may share it: transactions run one after the other.
    """

    def __init__(
        self, address: Address, engine: Engine, lock: FileLock | None, *, read_only: bool, schema: Schema
    ) -> None:
        self.address = address
        self._schema = schema
        self._engine = engine
        self._file_lock = lock
        self._read_only = read_only
        self._guard = threading.RLock()
        self._connection: Connection | None = None
        self._file: tuple[int, int] | None = None
        self.connects = 0
        """Grows with every connection. Ids that were read before may belong to another database since then."""
        self._is_closed = False

    @classmethod
    def open(
        cls,
        url: str,
        *,
        read_only: bool = False,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        schema: Schema = migration.HISTORY,
    ) -> Database:
        """Open the database; a writer takes the lock and migrates the schema."""
        address = parse_address(url)
        lock = None
        if address.path is not None:
            if read_only and not address.path.exists():
                start = f"start `{schema.process}`, or name its store with --store"
                raise errors.Transient(f"the store {address} does not exist yet: {start}")
            lock = None if read_only else FileLock(address.path)
            engine = sqlite_file.make_engine(address.path, read_only=read_only, busy_timeout_s=busy_timeout_s)
        else:
            engine = postgresql.make_engine(address, read_only=read_only)
        database = cls(address, engine, lock, read_only=read_only, schema=schema)
        try:
            with database.transaction():
                pass
        except BaseException:
            database.close()
            raise
        return database

    @property
    def is_postgresql(self) -> bool:
        return self.address.path is None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run a block in one transaction: all of it is stored, or nothing."""
        with self._guard, translated(self.address):
            connection = self._connect()
            try:
                with connection.begin():
                    yield connection
            except BaseException:
                if not _is_usable(connection):
                    self._disconnect()
                raise

    def insert(self, table: sa.Table) -> Any:
        """Return an INSERT of this database's dialect, which knows ON CONFLICT."""
        from sqlalchemy.dialects import postgresql as pg  # noqa: PLC0415 -- `postgresql` is our module here
        from sqlalchemy.dialects import sqlite  # noqa: PLC0415 -- beside the other

        return pg.insert(table) if self.is_postgresql else sqlite.insert(table)

    def close(self) -> None:
        """Close the connection and release the lock. Closing twice does nothing."""
        with self._guard:
            self._is_closed = True
            self._disconnect()
            self._engine.dispose()
            if self._file_lock is not None:
                self._file_lock.release()

    def _connect(self) -> Connection:
        if self._is_closed:
            raise errors.Permanent(f"the store {self.address} is closed")
        if self._connection is not None and self._identify_file() != self._file:
            # The operator has moved a damaged file away, or put back an older one.
            self._disconnect()
        if self._connection is None:
            if self.address.path is not None:
                sqlite_file.check_file(self.address, self.address.path)
            connection = self._engine.connect()
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._file = self._identify_file()
            self.connects += 1
        return self._connection

    def _prepare(self, connection: Connection) -> None:
        """Lock and migrate. Again after every reconnect: the server may have been restored meanwhile."""
        if self._read_only:
            with connection.begin():
                migration.check_revision(connection, self.address, self._schema)
            return
        if self.is_postgresql:
            with connection.begin():
                postgresql.take_lock(connection, self.address, self._schema.lock)
        with connection.begin():
            migration.migrate(connection, self.address, self._schema)

    def _identify_file(self) -> tuple[int, int] | None:
        """Return what stays the same while a file is at the path; None for PostgreSQL, or if there is no file."""
        if self.address.path is None:
            return None
        try:
            found = self.address.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                self._connection.close()
            self._connection = None


def _is_usable(connection: Connection) -> bool:
    """Whether a connection has survived an error: it is open, and no transaction is left in it."""
    if connection.invalidated or connection.closed:
        return False
    driver = connection.connection.driver_connection
    return not (isinstance(driver, sqlite3.Connection) and driver.in_transaction)
