"""Recordings: nodes and what pods held on them in a window, read from segments for replays."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import sqlalchemy as sa

from kgwe import errors
from kgwe.costing.charges import divide_signed
from kgwe.costing.metering.mig_weights import SlicePlace, weigh_slices
from kgwe.costing.prices.book import FOREVER, Capacity, NodeKind, Quote
from kgwe.costing.prices.commitments import PREFIX, CommitmentKind
from kgwe.costing.segments import Bucket, Part
from kgwe.model.gpu import catalog
from kgwe.scaling.replay.recording import Allocation, NodeLife, Pool, Recording
from kgwe.store.ledger import rollups
from kgwe.store.ledger.reader import fetch_segments, load_accounts, load_pods
from kgwe.store.ledger.schema import NODES, PIECES, PRICES, SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection

    from kgwe.costing.prices.book import PriceBook
    from kgwe.store.database import Database

_MILLI: Final = 1000
_PARTS: Final = frozenset({Part.GPU, Part.SLICE, Part.SHARE})
_PREPAID: Final = tuple(f"{kind} " for kind in CommitmentKind)


@dataclass(slots=True)
class _Life:
    start_s: int
    end_s: int
    paid_s: int = 0
    ticks: int = 0
    capacity: str = ""
    instance_type: str = ""
    is_prepaid: bool = False


@dataclass(slots=True)
class _Hold:
    """What a pod held on a node."""

    start_s: int = FOREVER
    end_s: int = 0
    ticks: int = 0
    whole: set[str] = field(default_factory=set)
    parts: dict[str, dict[str, int]] = field(default_factory=dict)
    """GPU -> place on it -> milli."""


def load_recording(database: Database, start_s: int, end_s: int, book: PriceBook | None = None) -> Recording:
    """Return what was recorded of a window. `book`: on-demand prices of pools that had only spot nodes."""
    with database.transaction() as connection:
        rows = fetch_segments(connection, start_s, end_s, SEGMENTS.c.price)
        pieces = {row[0]: row for row in connection.execute(sa.select(PIECES))}
        facts = {row[0]: row for row in connection.execute(sa.select(NODES))}
        prepaid = _list_prepaid(connection)
        held = rows[rows[:, rollups.BUCKET] == Bucket.ALLOCATED]
        pods = load_pods(connection, np.unique(held[:, rollups.POD]).tolist(), load_accounts(connection))
    owners = {number: f"{account.namespace}/{workload}" for number, (account, workload, _) in pods.items()}
    begin, end = rows[:, rollups.START], rows[:, rollups.START] + rows[:, rollups.SECONDS]
    rows = np.column_stack([rows, np.maximum(begin, start_s), np.minimum(end, end_s)])
    lives = _read_lives(rows, pieces, prepaid)
    gpus: dict[str, set[str]] = {}
    models: dict[str, str] = {}
    for number in np.unique(rows[:, rollups.PIECE]).tolist():
        _, node, part, gpu, _, model, *_ = pieces[number]
        if part in _PARTS:
            gpus.setdefault(node, set()).add(gpu)
            models[node] = model
    nodes = []
    for name, life in lives.items():
        known = facts.get(name)
        count = (known.gpus if known else 0) or len(gpus.get(name, ()))
        pool = Pool(life.instance_type, models.get(name, ""), count)
        is_spot, is_prepaid = life.capacity == Capacity.SPOT, life.is_prepaid or name.startswith(PREFIX)
        nodes.append(NodeLife(name, pool, is_spot, is_prepaid, life.start_s, life.end_s, life.paid_s, life.ticks))
    prices = _quote_pools(nodes, facts, book, end_s - 1) if book is not None else {}
    return Recording(start_s, end_s, tuple(nodes), tuple(_list_allocations(rows, pieces, owners)), prices)


def _list_prepaid(connection: Connection) -> set[int]:
    return {row[0] for row in connection.execute(sa.select(PRICES)) if row[1].startswith(_PREPAID)}


def _read_lives(rows: Any, pieces: dict[int, Any], prepaid: set[int]) -> dict[str, _Life]:
    found: dict[str, _Life] = {}
    for row in rows[rows[:, rollups.BUCKET] == Bucket.FLEET].tolist():
        piece, first, last = pieces[row[rollups.PIECE]], row[-2], row[-1]
        life = found.setdefault(piece.node, _Life(first, last))
        life.start_s, life.end_s = min(life.start_s, first), max(life.end_s, last)
        life.paid_s += last - first
        life.ticks += row[rollups.RATE] * (last - first)
        life.capacity, life.instance_type = piece.capacity, piece.instance_type
        life.is_prepaid |= piece.capacity == Capacity.RESERVED or row[rollups.PRICE] in prepaid
    return found


def _list_allocations(rows: Any, pieces: dict[int, Any], owners: dict[int, str]) -> Iterator[Allocation]:
    held: dict[tuple[int, str], _Hold] = {}
    for row in rows[rows[:, rollups.BUCKET] == Bucket.ALLOCATED].tolist():
        _, node, part, gpu, place, model, *_ = pieces[row[rollups.PIECE]]
        first, last = row[-2], row[-1]
        hold = held.setdefault((row[rollups.POD], node), _Hold())
        hold.ticks += row[rollups.RATE] * (last - first)
        if part not in _PARTS:
            continue
        hold.start_s, hold.end_s = min(hold.start_s, first), max(hold.end_s, last)
        if part == Part.GPU:
            hold.whole.add(gpu)
            continue
        places = hold.parts.setdefault(gpu, {})
        size = _weigh_slice(model, place) or row[rollups.PPM] // _MILLI
        places[place] = max(places.get(place, 0), size)
    for (pod, node), hold in held.items():
        count = bool(hold.whole) + len(hold.parts)
        cost = divide_signed(hold.ticks, [1] * count) if count else []
        base = Allocation(node, hold.start_s, hold.end_s, owner=owners.get(pod, ""))
        if hold.whole:
            yield replace(base, gpus=len(hold.whole), ticks=cost.pop())
        for places in hold.parts.values():
            yield replace(base, milli=min(max(sum(places.values()), 1), _MILLI), ticks=cost.pop())


def _weigh_slice(model: str, place: str) -> int:
    """Return the part of the GPU that a slice weighs in an empty GPU, in thousandths; 0 if it is not known."""
    profile = place.partition("@")[0]
    if not profile:
        return 0
    try:
        geometry = catalog.find_model(model).geometry
    except errors.Permanent:
        return 0
    if geometry is None:
        return 0
    (weight,) = weigh_slices(geometry, (SlicePlace(profile, 0),)).slices
    return weight * _MILLI // (2 * geometry.compute * geometry.units)


def _quote_pools(nodes: list[NodeLife], facts: dict[str, Any], book: PriceBook, at_s: int) -> dict[Pool, int]:
    found: dict[Pool, int] = {}
    for each in nodes:
        if each.is_spot and each.pool not in found:
            known = facts.get(each.name)
            region, zone = (known.region, known.zone) if known else ("", "")
            kind = NodeKind(each.pool.instance_type, region, zone, Capacity.ON_DEMAND, each.pool.model, each.pool.gpus)
            quote = book.quote(kind, at_s)
            if isinstance(quote, Quote):
                found[each.pool] = quote.micros_per_hour
    return found
