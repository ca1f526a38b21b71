"""Nodes of a window with what no pod held of them, read from segments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import sqlalchemy as sa

from kgwe.costing.fragmentation import NodeHistory, Spare
from kgwe.costing.metering.late_ends import SPARE
from kgwe.costing.segments import HELD, Bucket, Part
from kgwe.store.ledger import rollups
from kgwe.store.ledger.reader import fetch_segments
from kgwe.store.ledger.schema import PIECES, SEGMENTS

if TYPE_CHECKING:
    from kgwe.store.database import Database


@dataclass(slots=True)
class _Node:
    spare: list[Spare] = field(default_factory=list)
    held: list[tuple[int, int]] = field(default_factory=list)
    start_s: int = 2**62
    end_s: int = 0


def load_histories(database: Database, start_s: int, end_s: int) -> list[NodeHistory]:
    """Return the nodes of a window."""
    with database.transaction() as connection:
        rows = fetch_segments(connection, start_s, end_s, SEGMENTS.c.price)
        columns = (PIECES.c.id, PIECES.c.node, PIECES.c.part)
        pieces = {row[0]: (row[1], row[2]) for row in connection.execute(sa.select(*columns))}
    begin, end = rows[:, rollups.START], rows[:, rollups.START] + rows[:, rollups.SECONDS]
    rows = np.column_stack([rows, np.maximum(begin, start_s), np.minimum(end, end_s)])
    found: dict[str, _Node] = {}
    for row in rows.tolist():
        bucket, (name, part), first, last = row[rollups.BUCKET], pieces[row[rollups.PIECE]], row[-2], row[-1]
        node = found.setdefault(name, _Node())
        if bucket == Bucket.FLEET:
            node.start_s, node.end_s = min(node.start_s, first), max(node.end_s, last)
        elif bucket in HELD and part != Part.HOST:
            node.held.append((first, last))
        elif bucket in SPARE:
            node.spare.append(Spare(first, last, row[rollups.RATE], row[rollups.PPM], part == Part.HOST))
    return [NodeHistory(each.spare, each.held, each.start_s > start_s, each.end_s < end_s) for each in found.values()]
