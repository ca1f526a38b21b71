"""Where a history is stored: a SQLite file or a PostgreSQL database."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from kgwe import errors

if TYPE_CHECKING:
    from sqlalchemy.engine import URL


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one database."""

    url: URL = field(repr=False)
    path: Path | None
    """The SQLite file; None for PostgreSQL."""

    def __str__(self) -> str:
        """Name the database in messages; never the password."""
        return str(self.path) if self.path else self.url.set(query={}).render_as_string(hide_password=True)


def parse_address(text: str) -> Address:
    """Return the address that a user wrote: a path, `sqlite:///path` or `postgresql://…`."""
    if "://" not in text:
        if not text.strip():
            raise errors.Permanent("the address of the store is empty: name a file, or a postgresql:// URL")
        return _locate_file(text)
    try:
        url = make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        # The parser's message repeats the URL, which may contain a password.
        raise errors.Permanent("the address of the store is not a URL: expected postgresql://user@host/name") from None
    backend = url.get_backend_name()
    if backend == "sqlite":
        if not url.database or url.database == ":memory:":
            raise errors.Permanent("a store in memory would lose all history: use sqlite:////path/to/file")
        return _locate_file(url.database)
    if backend in {"postgresql", "postgres"}:
        return Address(url.set(drivername="postgresql+psycopg"), None)
    raise errors.Permanent(f"the store cannot be in {backend}: use a file for SQLite, or a postgresql:// URL")


def _locate_file(text: str) -> Address:
    path = Path(text).expanduser().absolute()
    if path.is_dir():
        raise errors.Permanent(f"{path} is a directory: name a file in it, such as {path / 'history.db'}")
    return Address(sa.URL.create("sqlite+pysqlite", database=str(path)), path)
