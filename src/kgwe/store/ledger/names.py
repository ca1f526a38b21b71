"""Numbers for names: accounts, workloads, pods, pieces and prices. The only writer gives them out."""

from __future__ import annotations

import hashlib
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import sqlalchemy as sa

from kgwe.costing.segments import Account, Part, Piece
from kgwe.store.ledger.schema import ACCOUNTS, PIECES, PODS, PRICES, WORKLOADS
from kgwe.store.rows import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy.engine import Connection

    from kgwe.costing.segments import Holder, Segment
    from kgwe.store.database import Database

_MOST_PODS: Final = 200_000
_CHUNK: Final = 500
#: What stands for no pod, no account and no price.
NOTHING: Final = 0


class PodIds(NamedTuple):
    """The numbers of a pod, and the holder they were given to."""

    holder: Holder
    pod: int
    account: int


class Names:
    """Names of one ledger. After a transaction that failed, `forget` what it gave out."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connects = -1
        self.pods: dict[str, PodIds] = {}
        self.pieces: dict[Piece, int] = {}
        self.prices: dict[str, int] = {}
        self._accounts: dict[Account, int] = {}
        self._workloads: dict[tuple[int, str], int] = {}
        self._last_pod = 0

    def forget(self) -> None:
        """Forget all names; the next transaction reads them again."""
        self._connects = -1

    def register(self, connection: Connection, segments: Iterable[Segment]) -> None:
        """Give numbers to all names of the segments."""
        self._load(connection)
        if len(self.pods) > _MOST_PODS:
            self.pods.clear()
        holders: dict[str, Holder] = {}
        pieces: dict[Piece, None] = {}
        prices: dict[str, None] = {}
        known_pods, known_pieces, known_prices = self.pods, self.pieces, self.prices
        for each in segments:
            holder = each.holder
            if holder is not None:
                known = known_pods.get(holder.uid)
                if known is None or (known.holder is not holder and known.holder != holder):
                    holders[holder.uid] = holder
            if each.piece not in known_pieces:
                pieces[each.piece] = None
            if each.price not in known_prices:
                prices[each.price] = None
        self._add_pieces(connection, pieces)
        self._add_prices(connection, prices)
        if holders:
            self._add_pods(connection, list(holders.values()))

    def _load(self, connection: Connection) -> None:
        if self._connects == self._database.connects:
            return
        self.pods.clear()
        self.pieces = {_read_piece(row): row[0] for row in connection.execute(sa.select(PIECES))}
        self.prices = {"": NOTHING} | {row[1]: row[0] for row in connection.execute(sa.select(PRICES))}
        self._accounts = {Account(*row[1:]): row[0] for row in connection.execute(sa.select(ACCOUNTS))}
        self._workloads = {(row[1], row[2]): row[0] for row in connection.execute(sa.select(WORKLOADS))}
        self._last_pod = int(connection.execute(sa.select(sa.func.max(PODS.c.id))).scalar() or 0)
        self._connects = self._database.connects

    def _add_pieces(self, connection: Connection, pieces: Iterable[Piece]) -> None:
        rows = []
        for piece in pieces:
            number = len(self.pieces) + 1
            rows.append((number, *_clean_piece(piece)))
            self.pieces[piece] = number
        self._insert(connection, PIECES, rows)

    def _add_prices(self, connection: Connection, prices: Iterable[str]) -> None:
        rows = []
        for version in prices:
            number = len(self.prices)
            rows.append((number, clean_text(version)))
            self.prices[version] = number
        self._insert(connection, PRICES, rows)

    def _add_pods(self, connection: Connection, holders: list[Holder]) -> None:
        accounts = [self._find_account(connection, each.account) for each in holders]
        workloads = self._find_workloads(connection, holders, accounts)
        keys = [hash_pod(each.uid, workload) for each, workload in zip(holders, workloads, strict=True)]
        stored = find_pods(connection, keys)
        rows = []
        for holder, account, workload, key in zip(holders, accounts, workloads, keys, strict=True):
            number = stored.get(key)
            if number is None:
                self._last_pod += 1
                stored[key] = number = self._last_pod
                rows.append((number, key, workload, clean_text(holder.pod)))
            self.pods[holder.uid] = PodIds(holder, number, account)
        self._insert(connection, PODS, rows)

    def _find_account(self, connection: Connection, account: Account) -> int:
        number = self._accounts.get(account)
        if number is None:
            cleaned = Account(*map(clean_text, astuple(account)))
            number = self._accounts.get(cleaned)
            if number is None:
                number = max(self._accounts.values(), default=0) + 1
                self._insert(connection, ACCOUNTS, [(number, *astuple(cleaned))])
            self._accounts[account] = self._accounts[cleaned] = number
        return number

    def _find_workloads(self, connection: Connection, holders: list[Holder], accounts: list[int]) -> list[int]:
        rows = []
        found = []
        for holder, account in zip(holders, accounts, strict=True):
            key = account, clean_text(holder.workload)
            number = self._workloads.get(key)
            if number is None:
                self._workloads[key] = number = len(self._workloads) + 1
                rows.append((number, *key))
            found.append(number)
        self._insert(connection, WORKLOADS, rows)
        return found

    def _insert(self, connection: Connection, table: sa.Table, rows: list[tuple[Any, ...]]) -> None:
        """Insert rows with all columns, by the driver: much faster than compiled statements."""
        if rows:
            mark = "%s" if self._database.is_postgresql else "?"
            marks = ", ".join([mark] * len(table.columns))
            names = ", ".join(column.name for column in table.columns)
            connection.exec_driver_sql(f"INSERT INTO {table.name} ({names}) VALUES ({marks})", rows)  # noqa: S608 -- constants


def hash_pod(uid: str, workload: int) -> int:
    """Return 63 bits. Among ten million pods, two have the same with a probability of 5 in a million."""
    digest = hashlib.blake2b(f"{uid}/{workload}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def find_pods(connection: Connection, keys: list[int]) -> dict[int, int]:
    """Return the numbers of pods by their hashes, as far as they are stored."""
    found: dict[int, int] = {}
    for start in range(0, len(keys), _CHUNK):
        # Numbers need no quoting, and a statement that is not compiled is ten times faster.
        listed = ", ".join(map(str, keys[start : start + _CHUNK]))
        cursor: Any = connection.exec_driver_sql(f"SELECT key, id FROM cost_pods WHERE key IN ({listed})").cursor  # noqa: S608 -- numbers
        found.update(cursor.fetchall())
    return found


def _clean_piece(piece: Piece) -> tuple[Any, ...]:
    return tuple(int(each) if isinstance(each, int) else clean_text(each) for each in piece)


def _read_piece(row: Any) -> Piece:
    return Piece(row[1], Part(row[2]), *row[3:])
