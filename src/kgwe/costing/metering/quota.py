"""Quota that namespaces hold and do not use: a part of what is unallocated, named by who keeps it from others.

It is no cost of its own. Each GPU of unused quota stands for one unallocated GPU at the mean price of these. Where the
unused quotas exceed the unallocated GPUs, they divide them.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from kgwe.costing import money
from kgwe.costing.money import DAY_S
from kgwe.costing.segments import PPM, Account, Bucket, Holder, Part, Piece, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class Spare(NamedTuple):
    """Unallocated GPUs: their rate in micro-dollars per hour, and how many in millionths."""

    rate: int
    ppm: int


def sum_spare(segments: Iterable[Segment]) -> Spare:
    """Return the GPUs that no pod holds."""
    found = [each for each in segments if each.bucket is Bucket.UNALLOCATED and each.ppm]
    return Spare(sum(each.rate for each in found), sum(each.ppm for each in found))


def divide_spare(unused: Mapping[str, int], spare: Spare) -> dict[str, Spare]:
    """Return the part of the unallocated GPUs that each namespace keeps by unused quota (whole GPUs)."""
    wanted = {name: gpus for name, gpus in sorted(unused.items()) if gpus > 0}
    total = sum(wanted.values()) * PPM
    if not total or not spare.ppm:
        return {}
    weights = [*(gpus * PPM for gpus in wanted.values()), max(spare.ppm - total, 0)]
    rates, ppms = money.divide(spare.rate, weights), money.divide(spare.ppm, weights)
    return {name: Spare(rates[number], ppms[number]) for number, name in enumerate(wanted)}


class QuotaMeter:
    """Segments of unused quota. Each count extends those that stayed the same."""

    def __init__(self, since_s: int) -> None:
        self._until_s = since_s
        self._open: dict[str, Segment] = {}

    def count(self, until_s: int, unused: Mapping[str, int], spare: Spare) -> Iterator[Segment]:
        """Yield the segments to write from the last count until a time."""
        if until_s <= self._until_s:
            return
        kept = divide_spare(unused, spare)
        days = range((self._until_s // DAY_S + 1) * DAY_S, until_s, DAY_S)
        edges = [self._until_s, *days, until_s]
        opened: dict[str, Segment] = {}
        for name, part in kept.items():
            for start_s, end_s in itertools.pairwise(edges):
                before = opened.get(name) or self._open.get(name)
                is_same = before is not None and before.end_s == start_s and (before.rate, before.ppm) == part
                begin_s = before.start_s if before is not None and is_same and start_s % DAY_S else start_s
                opened[name] = _make(name, begin_s, end_s, part)
                yield opened[name]
        self._open = opened
        self._until_s = until_s


def _make(namespace: str, start_s: int, end_s: int, part: Spare) -> Segment:
    holder = Holder(f"quota/{namespace}", "", "ResourceQuota", Account(namespace))
    piece = Piece("", Part.GPU)
    return Segment(start_s, end_s, Bucket.QUOTA_HELD, piece, part.rate, part.ppm, holder, price="mean of unallocated")
