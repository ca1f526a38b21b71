"""Small JSON documents with versions: the savings ledger, the model registry, the state of idle actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from kgwe import errors
from kgwe.store.rows import clean_text
from kgwe.store.schema import DOCUMENTS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from kgwe.store.database import Database


@dataclass(frozen=True, slots=True)
class Document:
    """A stored document. Its version grows by one with every write."""

    kind: str
    name: str
    version: int
    updated_s: float
    body: Any


class DocumentTable:
    """Documents in a database, by kind and name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, kind: str, name: str, body: Any, now_s: float, expected_version: int | None = None) -> int:
        """Store a document and return its version.

        With `expected_version`, Conflict if the stored version is another one. 0 expects that there is no document.
        """
        text = _encode(body, kind, name)
        with self._database.transaction() as connection:
            current = _read_version(connection, kind, name)
            if expected_version is not None and current != expected_version:
                raise errors.Conflict(
                    f"document {kind}/{name} has version {current}, not {expected_version}: read it and decide again"
                )
            row = {"kind": kind, "name": name, "version": current + 1, "updated_s": now_s, "body": text}
            insert = self._database.insert(DOCUMENTS).values(row)
            changed = {column: insert.excluded[column] for column in ("version", "updated_s", "body")}
            connection.execute(insert.on_conflict_do_update(index_elements=["kind", "name"], set_=changed))
        return current + 1

    def load(self, kind: str, name: str) -> Document | None:
        """Return a document; None if there is none."""
        query = sa.select(DOCUMENTS).where(DOCUMENTS.c.kind == kind, DOCUMENTS.c.name == name)
        with self._database.transaction() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else _read(row)

    def list(self, kind: str) -> list[Document]:
        """Return all documents of a kind, by name."""
        query = sa.select(DOCUMENTS).where(DOCUMENTS.c.kind == kind).order_by(DOCUMENTS.c.name)
        with self._database.transaction() as connection:
            return [_read(row) for row in connection.execute(query).mappings()]

    def delete(self, kind: str, name: str, expected_version: int | None = None) -> None:
        """Delete a document. A document that does not exist is deleted already."""
        with self._database.transaction() as connection:
            current = _read_version(connection, kind, name)
            if expected_version is not None and current not in {0, expected_version}:
                raise errors.Conflict(f"document {kind}/{name} has version {current}, not {expected_version}")
            connection.execute(sa.delete(DOCUMENTS).where(DOCUMENTS.c.kind == kind, DOCUMENTS.c.name == name))


def _encode(body: Any, kind: str, name: str) -> str:
    try:
        return clean_text(msgspec.json.encode(body).decode())
    except (TypeError, ValueError, msgspec.MsgspecError) as exc:
        raise errors.Permanent(f"document {kind}/{name} cannot be written as JSON: {exc}") from exc


def _read_version(connection: Connection, kind: str, name: str) -> int:
    query = sa.select(DOCUMENTS.c.version).where(DOCUMENTS.c.kind == kind, DOCUMENTS.c.name == name)
    return int(connection.execute(query).scalar() or 0)


def _read(row: sa.RowMapping) -> Document:
    body = msgspec.json.decode(row["body"])
    return Document(row["kind"], row["name"], row["version"], row["updated_s"], body)
