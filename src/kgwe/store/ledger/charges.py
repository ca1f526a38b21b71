"""Charges: what each pod, or no pod, cost on a node in an hour or a day. Exports and restated reports read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from kgwe.costing.bills.lines import name_resource
from kgwe.costing.bills.reconcile import Cause, NodeHour, NodeHourKey
from kgwe.costing.books import Sums
from kgwe.costing.charges import Charge, Place, restate
from kgwe.costing.money import HOUR_S
from kgwe.costing.segments import Account, Bucket, Part
from kgwe.store.ledger import rollups
from kgwe.store.ledger.ledger import NodeFacts
from kgwe.store.ledger.reader import fetch_segments, load_accounts, load_pods
from kgwe.store.ledger.schema import BILLS, NODES, PIECES, PRICES, RESTATEMENTS, SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray
    from sqlalchemy.engine import Connection

    from kgwe.store.database import Database


class ChargeReader:
    """Reads charges from segments, which are kept for 90 days."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, start_s: int, end_s: int, period_s: int = HOUR_S, *, restated: bool = False) -> list[Charge]:
        """Return the charges of a window, in the order of time. `restated`: as billed, where a bill was imported."""
        with self._database.transaction() as connection:
            charges = list(_list_charges(connection, (start_s, end_s), HOUR_S if restated else period_s))
            if not restated:
                return charges
            first, last = start_s // HOUR_S, -(-end_s // HOUR_S)
            query = sa.select(RESTATEMENTS).where(RESTATEMENTS.c.hour >= first, RESTATEMENTS.c.hour < last)
            billed = [
                (NodeHourKey(row.node, row.hour), row.billed_micros, Cause(row.cause))
                for row in connection.execute(query)
            ]
        return restate(charges, billed)

    def load_nodes(self) -> dict[str, NodeFacts]:
        """Return what is known of all nodes."""
        with self._database.transaction() as connection:
            return {row[0]: NodeFacts(*row) for row in connection.execute(sa.select(NODES))}

    def load_bills(self) -> list[tuple[str, int, int, str, int]]:
        """Return name, first and last second, currency and micro-dollars of each bill."""
        columns = (BILLS.c.name, BILLS.c.start_s, BILLS.c.end_s, BILLS.c.currency, BILLS.c.micros)
        with self._database.transaction() as connection:
            return [tuple(row) for row in connection.execute(sa.select(*columns).order_by(BILLS.c.id))]

    def list_node_hours(self, start_s: int, end_s: int) -> dict[NodeHourKey, NodeHour]:
        """Return what each node cost in each hour."""
        found: dict[NodeHourKey, NodeHour] = {}
        with self._database.transaction() as connection:
            rows = _fetch_cut(connection, (start_s, end_s), HOUR_S, (Bucket.FLEET,))
            if rows is None:
                return found
            pieces = _load_places(connection)
            for row, hour, sums, seconds in rows.list_parts():
                place = pieces[row[rollups.PIECE]]
                key = NodeHourKey(place.node, hour)
                before = found.get(key) or NodeHour(0, 0)
                found[key] = NodeHour(
                    before.ticks + sums[0],
                    before.seconds + seconds,
                    place.instance_type,
                    before.is_unpriced or row[rollups.PRICE] == 0,
                )
        return found

    def list_resources(self) -> dict[str, str]:
        """Return node names by the names that bills give them. One without a provider ID has its own name."""
        return {name_resource(each.provider_id) or name: name for name, each in self.load_nodes().items()}


class _Cut(NamedTuple):
    """Segments cut at the ends of periods."""

    rows: NDArray[np.int64]
    period: NDArray[np.int64]
    sums: NDArray[np.int64]
    seconds: NDArray[np.int64]

    def list_parts(self) -> Iterator[tuple[list[int], int, list[int], int]]:
        yield from zip(
            self.rows.tolist(), self.period.tolist(), self.sums.T.tolist(), self.seconds.tolist(), strict=True
        )


def _fetch_cut(
    connection: Connection, window: tuple[int, int], period_s: int, buckets: Iterable[Bucket] = ()
) -> _Cut | None:
    rows = fetch_segments(connection, *window, SEGMENTS.c.price)
    wanted = [int(each) for each in buckets]
    if wanted:
        rows = rows[np.isin(rows[:, rollups.BUCKET], wanted)]
    if not len(rows):
        return None
    each, period = rollups.cut_periods(rows, period_s)
    low, high = np.maximum(period * period_s, window[0]), np.minimum((period + 1) * period_s, window[1])
    inside = low < high
    each, period, low, high = each[inside], period[inside], low[inside], high[inside]
    rows = rows[each]
    begin, end = rows[:, rollups.START], rows[:, rollups.START] + rows[:, rollups.SECONDS]
    seconds = np.maximum(np.minimum(high, end) - np.maximum(low, begin), 0)
    return _Cut(rows, period, rollups.clip_rows(rows, low, high), np.asarray(seconds))


def _list_charges(connection: Connection, window: tuple[int, int], period_s: int) -> Iterator[Charge]:
    cut = _fetch_cut(connection, window, period_s)
    if cut is None:
        return
    places = _load_places(connection)
    prices: Mapping[int, str] = {row[0]: row[1] for row in connection.execute(sa.select(PRICES))}
    numbers: dict[Place, int] = {}
    of_piece = {piece: numbers.setdefault(place, len(numbers)) for piece, place in places.items()}
    by_number = {number: place for place, number in numbers.items()}
    merged: dict[tuple[Any, ...], Sums] = {}
    seconds: dict[tuple[Any, ...], int] = {}
    for row, period, sums, length in cut.list_parts():
        key = (period, row[rollups.BUCKET], of_piece[row[rollups.PIECE]], row[rollups.POD], row[rollups.PRICE])
        merged.setdefault(key, Sums()).merge(Sums(*sums))
        seconds[key] = seconds.get(key, 0) + length
    pods = load_pods(connection, {key[3] for key in merged}, load_accounts(connection))
    for (period, bucket, number, pod, price), total in sorted(merged.items()):
        account, workload, name = pods.get(pod, (Account(), "", ""))
        start_s, end_s = period * period_s, (period + 1) * period_s
        yield Charge(
            max(start_s, window[0]),
            min(end_s, window[1]),
            Bucket(bucket),
            by_number[number],
            account,
            workload,
            name,
            prices.get(price, ""),
            total,
            seconds[period, bucket, number, pod, price],
        )


def _load_places(connection: Connection) -> dict[int, Place]:
    columns = (PIECES.c.id, PIECES.c.node, PIECES.c.part, PIECES.c.model, PIECES.c.capacity, PIECES.c.instance_type)
    return {row[0]: Place(row[1], Part(row[2]), *row[3:]) for row in connection.execute(sa.select(*columns))}
