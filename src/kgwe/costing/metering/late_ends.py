"""Ends that were reported only after a restart: what pods were charged beyond their end becomes cost of no pod.

A meter corrects its own segments. After a restart its facts are gone, so the stored segments are corrected instead: a
segment ends with its pod, and its rate goes on as spare. The lines of each moment keep their sum.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from kgwe.costing.segments import HELD, Bucket, Part, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.costing.segments import Holder, Piece

SPARE = frozenset({Bucket.UNALLOCATED, Bucket.RESERVED_IDLE})


class _Line(NamedTuple):
    bucket: Bucket
    holder: str
    piece: Piece


def end_holders(
    stored: Sequence[Segment], ends: Mapping[str, int], owners: Mapping[str, Holder] | None = None
) -> list[Segment]:
    """Return the segments to write so that holders end at these times, by UID. `owners`: of spare cost, by node.

    `stored` has all segments of the holders and all spare ones of their nodes that end after the earliest end. One
    without length is to be removed.
    """
    written: list[Segment] = []
    freed: dict[_Line, list[Segment]] = {}
    for each in stored:
        end_s = ends.get(each.holder.uid) if each.holder is not None and each.bucket in HELD else None
        if end_s is None or each.end_s <= end_s:
            continue
        kept, rest = each.cut(max(end_s, each.start_s))
        written.append(kept)
        spare = _free(rest, (owners or {}).get(each.piece.node))
        freed.setdefault(_name_line(spare), []).append(spare)
    known: dict[_Line, list[Segment]] = {}
    for each in stored:
        if each.bucket in SPARE:
            known.setdefault(_name_line(each), []).append(each)
    for line, added in freed.items():
        written += _add(known.get(line, []), added)
    return written


def _name_line(each: Segment) -> _Line:
    return _Line(each.bucket, each.holder.uid if each.holder is not None else "", each.piece)


def _free(rest: Segment, owner: Holder | None) -> Segment:
    is_reserved = rest.piece.capacity == "reserved"
    part = Part.HOST if rest.piece.part is Part.HOST else Part.GPU
    return replace(
        rest,
        bucket=Bucket.RESERVED_IDLE if is_reserved else Bucket.UNALLOCATED,
        holder=owner if is_reserved else None,
        piece=rest.piece._replace(part=part, place=""),
        measured_s=0,
        busy_ms=0,
    )


def _add(known: Sequence[Segment], added: Sequence[Segment]) -> list[Segment]:
    """Return the segments of one line that change when others are added to it."""
    touched = [each for each in known if any(_overlap(each, more) for more in added)]
    both = [*touched, *added]
    moments = sorted({moment for each in both for moment in (each.start_s, each.end_s)})
    found = [_sum(both, start_s, end_s) for start_s, end_s in pairwise(moments)]
    result = {each.start_s: each for each in found if each is not None}
    gone = [replace(each, end_s=each.start_s) for each in touched if each.start_s not in result]
    return [*gone, *result.values()]


def _overlap(one: Segment, other: Segment) -> bool:
    return one.start_s < other.end_s and other.start_s < one.end_s


def _sum(segments: Iterable[Segment], start_s: int, end_s: int) -> Segment | None:
    inside = [each for each in segments if each.start_s <= start_s and end_s <= each.end_s]
    if not inside:
        return None
    rate, ppm = sum(each.rate for each in inside), sum(each.ppm for each in inside)
    return replace(inside[0], start_s=start_s, end_s=end_s, rate=rate, ppm=ppm)
