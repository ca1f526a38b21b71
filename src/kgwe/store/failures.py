"""Errors of the drivers as errors of KGWE: what happened, and the next step.

Every write is one transaction and may be repeated, so after a Transient error the caller sends the same batch again.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.store.address import Address

_PRIMARY_CODE: Final = 0xFF
_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_FORBIDDEN: Final = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
# SQLSTATE classes: connection, resources, operator intervention, system error, serialization failure.
_TRANSIENT_STATES: Final = ("08", "53", "57", "58", "40", "25006", "55P03")
_DISK_FULL: Final = "53100"


@contextmanager
def translated(address: Address) -> Iterator[None]:
    """Raise errors of KGWE instead of those of the drivers."""
    try:
        yield
    except sa.exc.DBAPIError as exc:
        raise _translate(address, exc.orig or exc) from exc
    except sqlite3.Error as exc:
        raise _translate(address, exc) from exc
    except OverflowError as exc:
        raise errors.Permanent(f"a number is too large for the store {address}: nothing was written") from exc
    except sa.exc.SQLAlchemyError as exc:
        raise errors.Permanent(f"the store {address} failed: {_first_line(exc)}") from exc


def _translate(address: Address, exc: BaseException) -> errors.KgweError:
    if isinstance(exc, sqlite3.Error):
        return _translate_sqlite(address, exc)
    return _translate_postgresql(address, exc)


def _translate_sqlite(address: Address, exc: sqlite3.Error) -> errors.KgweError:
    # Errors that Python raises itself have no code.
    code = getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY_CODE
    text = _first_line(exc)
    if code in _DAMAGED:
        return damaged(address, text)
    if code == sqlite3.SQLITE_FULL:
        return errors.Transient(f"no space left for the store {address}: free or add disk space; writes are retried")
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return errors.Transient(f"the store {address} is locked by another program: close that program")
    if code == sqlite3.SQLITE_IOERR:
        return errors.Transient(f"cannot read or write the store {address} ({text}): check the disk and its free space")
    if code in _FORBIDDEN:
        return errors.Permanent(f"the store {address} cannot be written ({text}): check the owner and mode of the file")
    if code == sqlite3.SQLITE_CANTOPEN:
        return errors.Permanent(f"cannot open the store {address} ({text}): check that its directory can be written")
    return errors.Permanent(f"the store {address} failed: {text}")


def _translate_postgresql(address: Address, exc: BaseException) -> errors.KgweError:
    state = getattr(exc, "sqlstate", None)
    text = _first_line(exc)
    if state == _DISK_FULL:
        return errors.Transient(
            f"PostgreSQL at {address} has no disk space left: free or add space; writes are retried"
        )
    # Without a SQLSTATE the server was never reached, or the connection broke.
    if state is None and type(exc).__name__ in {"OperationalError", "InterfaceError", "ConnectionTimeout"}:
        return errors.Transient(f"no connection to PostgreSQL at {address} ({text}): check that the server runs")
    if state is not None and state.startswith(_TRANSIENT_STATES):
        return errors.Transient(f"PostgreSQL at {address} is not available ({text}): the same batch can be sent again")
    return errors.Permanent(f"the store {address} failed: {text}")


def damaged(address: Address, text: str) -> errors.Permanent:
    """Return the refusal of a damaged file. The file is left as it is."""
    return errors.Permanent(
        f"the store {address} is damaged ({text}) and was not changed: move it away"
        f" (mv {address} {address}.damaged; mv {address}-wal {address}.damaged-wal) and KGWE starts with an empty"
        f" history; `sqlite3 {address}.damaged .recover` saves what is readable"
    )


def _first_line(exc: BaseException) -> str:
    lines = str(exc).strip().splitlines()
    return lines[0] if lines else type(exc).__name__
