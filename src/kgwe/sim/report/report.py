"""The report of one or more runs, as JSON, as a table for the terminal, and as an HTML page.

All three show the same figures, defined once in `FIGURES`: label, source, format, and which direction is better. An
unknown figure is a dash, never a zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe.sim.report.metrics import Result  # noqa: TC001 -- msgspec reads the annotations of Report

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

_HOUR_S: Final = 3600
_MINUTE_S: Final = 60
_DAY_S: Final = 86400
_MANY: Final = 100


class Report(msgspec.Struct, frozen=True):
    """The parameters and results of a comparison."""

    #: fleet, workload, seed and options, as shown in the heading
    params: dict[str, str | int | float]
    results: list[Result]


@dataclass(frozen=True, slots=True)
class Figure:
    label: str
    value: Callable[[Result], float | None]
    write: Callable[[float], str]
    #: 1 if more is better, -1 if less is better, 0 if neither
    better: int = 0
    hint: str = ""


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def duration(seconds: float) -> str:
    """Format a duration with at most two significant parts: 42 s, 3.5 min, 2.1 h, 3.4 d."""
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.1f} min"
    if seconds < 2 * _DAY_S:
        return f"{seconds / _HOUR_S:.1f} h"
    return f"{seconds / _DAY_S:.1f} d"


def dollars(value: float) -> str:
    return f"${value:,.0f}" if value >= _MANY else f"${value:,.2f}"


def count(value: float) -> str:
    return f"{value:,.0f}"


def ratio(value: float) -> str:
    return f"{value:.2f}"


FIGURES: Final = (
    Figure("jobs finished", lambda r: r.jobs.finished, count, 1),
    Figure("jobs not finished", lambda r: r.jobs.running + r.jobs.waiting, count, -1),
    Figure("jobs that never fit", lambda r: r.jobs.impossible, count, -1, "even on the empty fleet"),
    Figure("GPU allocation", lambda r: r.allocation, percent, 1, "while jobs arrive"),
    Figure("fragmentation", lambda r: r.fragmentation, percent, -1, "idle GPU capacity that the mix cannot use"),
    Figure("wait, median", lambda r: r.wait_s.p50, duration, -1),
    Figure("wait, p90", lambda r: r.wait_s.p90, duration, -1),
    Figure("wait, p99", lambda r: r.wait_s.p99, duration, -1),
    Figure("completion, mean", lambda r: r.completion_s.mean, duration, -1, "from arrival to end"),
    Figure("completion, p99", lambda r: r.completion_s.p99, duration, -1),
    Figure("slowdown by spread", lambda r: r.gangs.slowdown, ratio, -1, "step time over the best placement's"),
    Figure("gang spread, nodes", lambda r: r.gangs.node_spread, ratio, -1, "relative to the minimum"),
    Figure("gang spread, leaves", lambda r: r.gangs.leaf_spread, ratio, -1, "relative to the minimum"),
    Figure("gangs in one leaf", lambda r: r.gangs.one_leaf_share, percent, 1, "of those that fit in one"),
    Figure("interruptions", lambda r: r.failures.interruptions, count, -1),
    Figure("GPU hours lost", lambda r: r.failures.lost_gpu_hours, count, -1, "work repeated after failures"),
    Figure("cost of the fleet", lambda r: _format_paid(r, r.cost.paid_usd), dollars, -1, "while jobs arrive"),
    Figure("cost of idle GPU", lambda r: _format_paid(r, r.cost.unused_usd), dollars, -1),
    Figure("per useful GPU hour", lambda r: r.cost.usd_per_useful_gpu_hour, dollars, -1),
)


def _format_paid(result: Result, amount: float) -> float | None:
    return amount if result.cost.priced_nodes else None


def find_best(figure: Figure, results: list[Result]) -> set[int]:
    """Return the numbers of the best results by a figure; none if all are equal or neither direction is better."""
    known = {number: figure.write(value) for number, r in enumerate(results) if (value := figure.value(r)) is not None}
    if not figure.better or len(results) < 2 or len(set(known.values())) < 2:  # noqa: PLR2004 -- one has no rival
        return set()
    wanted = max(figure.better * value for r in results if (value := figure.value(r)) is not None)
    return {
        number
        for number in known
        if (value := figure.value(results[number])) is not None
        and known[number] == figure.write(figure.better * wanted)
    }


def format_figure(figure: Figure, result: Result) -> str:
    value = figure.value(result)
    return "-" if value is None else figure.write(value)


def to_json(report: Report) -> str:
    return msgspec.json.encode(report).decode()


def to_table(report: Report) -> Table:
    """Return a table for `rich`; the best of each row is green."""
    from rich.table import Table  # noqa: PLC0415 -- rich costs 50 ms that a script should not pay

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for result in report.results:
        table.add_column(result.policy, justify="right", no_wrap=True)
    for figure in FIGURES:
        winners = find_best(figure, report.results)
        cells = [
            f"[green]{format_figure(figure, result)}[/]" if number in winners else format_figure(figure, result)
            for number, result in enumerate(report.results)
        ]
        table.add_row(figure.label, *cells)
    return table
