"""A statement: the books of a window and the lines of pods, rounded to micro-dollars so that all sums agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe.costing import money
from kgwe.costing.segments import PPM, Bucket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.costing.books import Books, Sums


@dataclass(frozen=True, slots=True)
class StatementLine:
    """One name and what it cost, in micro-dollars. Used, idle and unmeasured sum to the cost."""

    name: str
    micros: int
    used: int
    idle: int
    unmeasured: int
    gpu_seconds: float
    unpriced_gpu_seconds: float


@dataclass(frozen=True, slots=True)
class Statement:
    """What a window cost, in micro-dollars. Allocated, idle, unallocated and reserved idle sum to the fleet."""

    start_s: int
    end_s: int
    by: str
    method: str
    currency: str
    lines: tuple[StatementLine, ...]
    fleet: int
    allocated: int
    idle: int
    unallocated: int
    reserved_idle: int
    overhead: int
    """The part of allocated and idle that pods of the system hold."""
    unbalanced: int
    unpriced_gpu_seconds: float
    quota_held: int = 0
    """The part of unallocated that namespaces keep by quota that they do not use."""
    billed_only: int = 0
    """Billed, and not metered; only in restated statements."""
    owners: tuple[tuple[str, int], ...] = ()
    """Reserved idle by owner of the commitment. Sums to reserved idle."""
    quotas: tuple[tuple[str, int], ...] = ()
    """Quota held by namespace. Sums to quota held."""
    restated: bool = False
    """Whether the amounts are those of imported bills, where there are any."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Times within the window at which the engine was down."""


def make_statement(
    window: tuple[int, int],
    books: Books,
    lines: Mapping[str, Sums],
    *,
    by: str,
    method: str,
    currency: str,
    gaps: tuple[tuple[int, int], ...] = (),
    memo: Mapping[Bucket, Mapping[str, Sums]] | None = None,
    restated: bool = False,
) -> Statement:
    """Round the books and the lines. The most expensive line is the first. `memo`: buckets by owner or namespace."""
    allocated, idle, unallocated, reserved, billed_only = money.round_lines(
        [books.allocated, books.idle, books.unallocated, books.reserved_idle, books.billed_only]
    )
    memo = memo or {}
    quota_held = money.round_ticks(books.quota_held)
    names = sorted(lines, key=lambda name: (-lines[name].ticks, name))
    costs = money.round_lines([lines[name].ticks for name in names])
    return Statement(
        start_s=window[0],
        end_s=window[1],
        by=by,
        method=method,
        currency=currency,
        lines=tuple(_make_line(name, lines[name], micros) for name, micros in zip(names, costs, strict=True)),
        fleet=money.round_ticks(books.fleet),
        allocated=allocated,
        idle=idle,
        unallocated=unallocated,
        reserved_idle=reserved,
        overhead=money.round_ticks(books.sums(Bucket.OVERHEAD).ticks),
        unbalanced=books.unbalanced,
        unpriced_gpu_seconds=books.sums(Bucket.FLEET).unpriced_ppm_s / PPM,
        quota_held=quota_held,
        billed_only=billed_only,
        owners=_round_memo(memo.get(Bucket.RESERVED_IDLE, {}), reserved),
        quotas=_round_memo(memo.get(Bucket.QUOTA_HELD, {}), quota_held),
        restated=restated,
        gaps=tuple(each for each in gaps if each[0] < window[1] and window[0] < each[1]),
    )


def _round_memo(lines: Mapping[str, Sums], micros: int) -> tuple[tuple[str, int], ...]:
    """Return a rounded amount by name, the largest first."""
    names = sorted(lines, key=lambda name: (-lines[name].ticks, name))
    weights = [lines[name].ticks for name in names]
    parts = money.divide(micros, weights) if sum(weights) > 0 else [0] * len(names)
    return tuple(zip(names, parts, strict=True))


def _make_line(name: str, sums: Sums, micros: int) -> StatementLine:
    weights = (sums.used_ticks, sums.idle_ticks, sums.ticks - sums.measured_ticks)
    used, idle, unmeasured = money.divide(micros, weights) if any(weights) else (0, 0, micros)
    return StatementLine(name, micros, used, idle, unmeasured, sums.ppm_s / PPM, sums.unpriced_ppm_s / PPM)
