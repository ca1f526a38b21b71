"""From what happened on a node to its segments.

The facts are spans: the node as it was divided, and the claims of pods, each from a second until before another. They
may be told late, twice or in any order: the segments depend on the facts only. A sweep takes the moments at which
something changed, divides the node in between, and joins what stayed the same. Segments end at midnight UTC, so that
each belongs to one day.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kgwe.costing.metering.division import Claim, Line, NodeCut, divide_node
from kgwe.costing.money import DAY_S
from kgwe.costing.segments import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.costing.segments import Bucket, Holder, Piece


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """A node as it was divided for a time. Without `end_s` it still is."""

    start_s: int
    end_s: int | None
    node: NodeCut


@dataclass(frozen=True, slots=True)
class ClaimSpan:
    """A claim of a pod for a time. Without `end_s` the pod still has it."""

    start_s: int
    end_s: int | None
    claim: Claim


class LineKey(NamedTuple):
    """What a line is about; its rate may change."""

    bucket: Bucket
    holder: str
    piece: Piece


class OpenLine(NamedTuple):
    """A line that goes on: when its segment began, and at which rate."""

    start_s: int
    rate: int
    ppm: int
    price: str


class Sweep(NamedTuple):
    """The segments of a sweep, with those that still go on until its end."""

    segments: tuple[Segment, ...]
    open: dict[LineKey, OpenLine]
    """What goes on at the end of the sweep. The next sweep starts with it."""


def sweep_node(
    nodes: Sequence[NodeSpan],
    claims: Sequence[ClaimSpan],
    window: tuple[int, int],
    holders: Mapping[str, Holder],
    opened: Mapping[LineKey, OpenLine] | None = None,
) -> Sweep:
    """Return the segments of one node between two times. `opened`: what went on when the window began.

    Of two claims of the same pod that overlap, both count; of two node spans that overlap, the later one.
    """
    start_s, end_s = window
    running = dict(opened or {})
    segments: list[Segment] = []
    moments = _list_moments(nodes, claims, start_s, end_s)
    for at_s in moments[:-1]:
        node = _find_node(nodes, at_s)
        price = node.price if node else ""
        lines = _divide(node, [each.claim for each in claims if _covers(each, at_s)]) if node else []
        current = _merge(lines, at_s, price)
        is_midnight = at_s % DAY_S == 0
        ended = [key for key, line in running.items() if is_midnight or _differs(line, current.get(key))]
        segments += [_close(key, running.pop(key), at_s, holders) for key in ended]
        for key, line in current.items():
            running.setdefault(key, line)
    # A window may end exactly where a segment began: it has no length yet.
    finished = [_close(key, line, end_s, holders) for key, line in running.items()]
    return Sweep(tuple(each for each in (*segments, *finished) if each.end_s > each.start_s), running)


def _list_moments(nodes: Iterable[NodeSpan], claims: Iterable[ClaimSpan], start_s: int, end_s: int) -> list[int]:
    found = {start_s, end_s, *range(-(-start_s // DAY_S) * DAY_S, end_s, DAY_S)}
    spans: list[NodeSpan | ClaimSpan] = [*nodes, *claims]
    for span in spans:
        found.add(span.start_s)
        if span.end_s is not None:
            found.add(span.end_s)
    return sorted(each for each in found if start_s <= each <= end_s)


def _covers(span: NodeSpan | ClaimSpan, at_s: int) -> bool:
    return span.start_s <= at_s and (span.end_s is None or at_s < span.end_s)


def _find_node(nodes: Sequence[NodeSpan], at_s: int) -> NodeCut | None:
    found = [each for each in nodes if _covers(each, at_s)]
    return max(found, key=lambda each: each.start_s).node if found else None


def _divide(node: NodeCut, claims: Iterable[Claim]) -> list[Line]:
    """Divide in an order that does not depend on the order of the facts; a duplicate fact counts once."""
    unique = {(each.holder, each.gpus, each.cpu_milli, each.memory_bytes): each for each in claims}
    return divide_node(node, [unique[key] for key in sorted(unique)])


def _merge(lines: Iterable[Line], at_s: int, price: str) -> dict[LineKey, OpenLine]:
    """Return the lines by key. A pod with two claims on the same piece has one line."""
    found: dict[LineKey, OpenLine] = {}
    for each in lines:
        key = LineKey(each.bucket, each.holder, each.piece)
        known = found.get(key)
        rate, ppm = (known.rate, known.ppm) if known else (0, 0)
        found[key] = OpenLine(at_s, rate + each.rate, ppm + each.ppm, price)
    return found


def _differs(line: OpenLine, new: OpenLine | None) -> bool:
    return new is None or line[1:] != new[1:]


def _close(key: LineKey, line: OpenLine, end_s: int, holders: Mapping[str, Holder]) -> Segment:
    return Segment(
        start_s=line.start_s,
        end_s=end_s,
        bucket=key.bucket,
        piece=key.piece,
        rate=line.rate,
        ppm=line.ppm,
        holder=holders[key.holder] if key.holder else None,
        price=line.price,
    )
