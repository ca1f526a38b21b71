"""Starts that were seen only after a restart: pods pay from their start, with what was cost of no pod until then.

A meter corrects its own segments. After a restart its facts are gone, so the stored segments are corrected instead:
what a pod held is taken from the spare cost of its node. Where none is left, nothing is charged. The lines of each
moment keep their sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kgwe.costing.metering.late_ends import SPARE
from kgwe.costing.segments import Part, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kgwe.costing.metering.division import Line
    from kgwe.costing.segments import Holder, SegmentKey


class LateStart(NamedTuple):
    """A pod that was not charged for a time, and what it held."""

    holder: Holder
    start_s: int
    end_s: int
    lines: tuple[Line, ...]


def start_holders(stored: Iterable[Segment], starts: Sequence[LateStart]) -> list[Segment]:
    """Return the segments to write so that pods pay for these times. One without length is to be removed.

    `stored` has all spare segments of these times.
    """
    spare = {each.key: each for each in stored if each.bucket in SPARE and each.seconds}
    pools: dict[str, list[Segment]] = {}
    for each in spare.values():
        pools.setdefault(each.piece.node, []).append(each)
    charged = [
        each
        for late in starts
        for line in late.lines
        for each in _charge(pools.setdefault(line.piece.node, []), late, line)
    ]
    left = {each.key: each for pool in pools.values() for each in pool}
    gone = [replace(each, end_s=each.start_s) for key, each in spare.items() if key not in left]
    changed = [each for key, each in left.items() if spare.get(key) != each]
    return [*gone, *changed, *charged]


def apply(stored: Iterable[Segment], written: Iterable[Segment]) -> list[Segment]:
    """Return the stored segments as they are after others were written."""
    found: dict[SegmentKey, Segment] = {each.key: each for each in stored}
    found.update({each.key: each for each in written})
    return [each for each in found.values() if each.seconds]


def _charge(pool: list[Segment], late: LateStart, line: Line) -> Iterator[Segment]:
    """Yield what a pod pays for one line, and take it from the spare segments of its node."""
    spans = [(late.start_s, late.end_s)]
    while spans:
        first, last = spans.pop()
        spare = _choose(pool, line, first, last)
        if spare is None:
            continue
        start_s, end_s = max(first, spare.start_s), min(last, spare.end_s)
        is_all = spare.ppm == line.ppm and line.piece.part is not Part.HOST
        rate = spare.rate if is_all else min(line.rate, spare.rate)
        piece = line.piece._replace(gpu=spare.piece.gpu)
        yield Segment(start_s, end_s, line.bucket, piece, rate, line.ppm, late.holder, spare.price)
        pool.remove(spare)
        rest = replace(spare, start_s=start_s, end_s=end_s, rate=spare.rate - rate, ppm=spare.ppm - line.ppm)
        parts = [replace(spare, end_s=start_s), rest, replace(spare, start_s=end_s)]
        pool += [each for each in parts if each.seconds and (each.rate or each.ppm)]
        spans += [(a, b) for a, b in ((first, start_s), (end_s, last)) if a < b]


def _choose(pool: Sequence[Segment], line: Line, start_s: int, end_s: int) -> Segment | None:
    """Return spare cost of the kind of a line within a time: of its own GPU, else of another with room for all."""
    is_host = line.piece.part is Part.HOST
    fitting = [
        each
        for each in pool
        if (each.piece.part is Part.HOST) == is_host
        and each.start_s < end_s
        and start_s < each.end_s
        and (each.rate if is_host else each.ppm >= line.ppm)
    ]
    return min(fitting, key=lambda each: (each.piece.gpu != line.piece.gpu, each.ppm, each.start_s), default=None)
