"""`kgwe replay`: replays recorded decisions of the scheduler."""

from __future__ import annotations

import datetime as dt
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from cyclopts import App
from rich.console import Console
from rich.table import Table

from kgwe import errors, terminal
from kgwe.apps.scheduler.main import load_choosers
from kgwe.apps.scheduler.recording.files import files
from kgwe.kube.api import timestamp
from kgwe.records import decisions
from kgwe.sim import replay
from kgwe.visible_text import escape_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.sim.replay import Comparison, Outcome, Rates

app = App(
    name="replay",
    help=f"""Replay recorded decisions with the same policy or another.

With the same policy each decision must equal the recorded one exactly. The first difference is shown, and the exit
code is 1. With --policy, another policy decides each request in the recorded state, and the results are compared.

The scheduler writes records when recordDirectory is set.

Policies: {", ".join(replay.POLICIES)}""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe replay /var/lib/kgwe/records                    all files of a directory, oldest first
  kgwe replay decisions-20261115T100000Z-000001.jsonl
  kgwe replay records --since 2026-11-15T10:00:00Z --policy spread
  kgwe replay records --policy pack --json""",
)


@app.default
def replay_(
    *paths: Path,
    policy: str = "",
    since: str = "",
    show: int = 20,
    json: bool = False,
) -> int:
    """Replay recorded decisions.

    Parameters
    ----------
    paths
        Record files, or directories that contain them.
    policy
        Compare with the decisions of this strategy.
    since
        Only decisions from this time on, such as 2026-11-15T10:00:00Z.
    show
        With --policy: number of changed decisions to list.
    json
        Print one JSON object.
    """
    outcomes = replay.replay(
        decisions.read_lines(_find_files(paths)), policy=policy, choosers=load_choosers(), since_s=_parse_time(since)
    )
    first = next(outcomes, None)
    if first is None:
        later = f" since {since}" if since else ""
        raise errors.NotFound(f"no decisions{later} in {', '.join(map(str, paths))}: there is nothing to replay")
    outcomes = itertools.chain((first,), outcomes)
    return _compare(outcomes, policy, show, as_json=json) if policy else _verify(outcomes, as_json=json)


def _find_files(paths: tuple[Path, ...]) -> list[Path]:
    if not paths:
        raise errors.Permanent("no records given; pass record files or the directory set as recordDirectory")
    found: list[Path] = []
    for path in paths:
        found += files(path) if path.is_dir() else [path]
    if not found:
        raise errors.NotFound(f"no decisions-*.jsonl in {', '.join(map(str, paths))}; is recordDirectory set?")
    return found


def _parse_time(text: str) -> float:
    if not text:
        return 0.0
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        raise errors.Permanent(f"--since {text!r}: expected a time such as 2026-11-15T10:00:00Z") from None
    return (at if at.tzinfo else at.replace(tzinfo=dt.UTC)).timestamp()


# --- the same policy -------------------------------------------------------------------------------------


def _verify(outcomes: Iterator[Outcome], *, as_json: bool) -> int:
    counts = {"plan": 0, "extender": 0, "simulate": 0}
    refused, different = 0, 0
    first: Outcome | None = None
    span: list[float] = []
    for outcome in outcomes:
        counts[outcome.line.by] += 1
        refused += outcome.line.refused is not None
        span = [*span[:1], outcome.line.at_s]
        if outcome.difference:
            different += 1
            first = first or outcome
    total = sum(counts.values())
    if as_json:
        told: dict[str, Any] = {
            "decisions": total,
            "plans": counts["plan"],
            "placements": counts["extender"],
            "simulated": counts["simulate"],
            "refused": refused,
            "different": different,
            "first": None if first is None else _format_outcome(first),
        }
        _print_json(told)
    elif first is not None:
        _print(f"{different} of {total:,} decisions differ. The first is {_format_name(first)} at {first.where}:")
        _print(f"  {first.difference}")
    else:
        when = f", {timestamp.format_time(span[0])} to {timestamp.format_time(span[-1])}" if span else ""
        kinds = f"{counts['plan']:,} plans, {counts['extender']:,} single-pod placements"
        if counts["simulate"]:
            kinds = f"{counts['simulate']:,} of a simulation"
        _print(f"{total:,} decisions ({kinds}; {refused:,} refused){when}: all identical.")
    return 1 if first is not None else 0


# --- another policy --------------------------------------------------------------------------------------


def _compare(outcomes: Iterator[Outcome], policy: str, show: int, *, as_json: bool) -> int:
    found = replay.Comparison()
    for outcome in outcomes:
        found.add(outcome, keep=show)
    if as_json:
        _print_json(
            {"policy": policy, **_format_sums(found), "changed": [_format_outcome(each) for each in found.changed]}
        )
        return 0
    table = Table("", "recorded", policy, box=None, pad_edge=False)
    for name, values in _rows(found):
        table.add_row(name, *values)
    console = Console()
    console.print(f"{found.decisions:,} decisions, each in its recorded state\n", highlight=False)
    console.print(table)
    for outcome in found.changed:
        line = escape_text(f"  {_format_name(outcome)}: {outcome.difference}")
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    more = found.moved + found.placed + found.refused - len(found.changed)
    if more > 0:
        console.print(f"  and {more:,} more (use --show)", highlight=False)
    return 0


def _rows(found: Comparison) -> Iterator[tuple[str, tuple[str, str]]]:
    yield (
        "placed",
        (
            f"{found.same + found.moved + found.refused:,}",
            f"{found.same + found.moved + found.placed:,} ({found.moved:,} elsewhere)",
        ),
    )
    yield (
        "refused",
        (
            f"{found.still_refused + found.placed:,}",
            f"{found.still_refused + found.refused:,} ({found.refused:,} of them were placed)",
        ),
    )
    if found.gangs:
        old, new = (f"{leaves / found.gangs:.2f}" for leaves in found.leaves)
        yield f"leaves per gang ({found.gangs:,})", (old, new)
    for name, rates in (("ring of a gang", found.rings), ("links inside a pod", found.links)):
        if rates.count:
            new = f"{rates.new / rates.count:.1f} ({rates.faster:,} faster, {rates.slower:,} slower)"
            yield f"{name}, mean GB/s ({rates.count:,})", (f"{rates.old / rates.count:.1f}", new)


def _format_sums(found: Comparison) -> dict[str, Any]:
    names = ("decisions", "same", "moved", "placed", "refused", "still_refused", "gangs")
    leaves = [leaves / found.gangs for leaves in found.leaves] if found.gangs else None
    rates = {name: _rates(each) for name, each in (("rings", found.rings), ("links", found.links))}
    return {**{name: getattr(found, name) for name in names}, "leaves_per_gang": leaves, **rates}


def _rates(rates: Rates) -> dict[str, Any]:
    mean = [rates.old / rates.count, rates.new / rates.count] if rates.count else None
    return {"count": rates.count, "mean_gb_per_s": mean, "faster": rates.faster, "slower": rates.slower}


# --- text ------------------------------------------------------------------------------------------------


def _format_name(outcome: Outcome) -> str:
    ask = outcome.ask
    return f"{ask.namespace}/{ask.name}" if ask.name and "/" not in ask.name else ask.name or ask.owner


def _format_outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "where": outcome.where,
        "at": timestamp.format_time(outcome.line.at_s),
        "work": _format_name(outcome),
        "difference": outcome.difference,
        "recorded": outcome.line.answer,
        "now": outcome.answer,
        "leaves": list(outcome.leaves),
    }


def _print_json(value: Any) -> None:
    _print(msgspec.json.format(msgspec.json.encode(value)).decode())


def _print(text: str) -> None:
    terminal.write(text + "\n")
