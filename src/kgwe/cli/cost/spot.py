"""`kgwe report spot`: which workloads would cost less on spot nodes, by measured interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.cli.cost import ledger_access
from kgwe.cli.cost.ledger_access import Store  # noqa: TC001 - read by cyclopts when it runs

if TYPE_CHECKING:
    from kgwe.costing.prices.book import PriceBook
    from kgwe.scaling.replay.recording import Pool, Recording
    from kgwe.scaling.spot.advice import Advice, SpotPool

app = App(
    name="spot",
    help="""Advise which workloads to run on spot nodes.

Interruptions are measured: spot nodes that went away while pods held their GPUs. The cost on spot includes the work
that is repeated after an interruption, at the upper bound of the measured rate. Without spot nodes there is none.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe report spot --last 30d
  kgwe report spot --checkpoint-minutes 30      workloads that write a checkpoint every 30 minutes
  kgwe report spot --prices history.csv -o json  also show how spot prices moved""",
)
Output = Annotated[Literal["table", "json", "yaml"], Parameter(name=["--output", "-o"])]
_MOST_SECONDS: Final = 90 * 86_400
_SHOWN: Final = 30


@app.default
def spot(
    *,
    last: str = "30d",
    checkpoint_minutes: float | None = None,
    prices: tuple[Path, ...] = (),
    output: Output = "table",
    store: Store = ledger_access.DEFAULT_STORE,
) -> int:
    """Show advice on spot.

    Parameters
    ----------
    last
        Time before the last count, such as 24h, 7d or 4w; at most 90 days.
    checkpoint_minutes
        Minutes between checkpoints. Default: interrupted pods begin again.
    prices
        Price files, also histories of spot prices. Built-in prices apply where no file has one.
    output
        Output format.
    """
    from kgwe.cli.cost.rendering import encode  # noqa: PLC0415 -- when the command runs
    from kgwe.scaling.spot.advice import advise, measure_pools  # noqa: PLC0415

    seconds = ledger_access.parse_last(last)
    if seconds > _MOST_SECONDS:
        raise errors.Permanent(f"--last {last}: what pods held is kept for 90 days")
    if checkpoint_minutes is not None and not 0 < checkpoint_minutes < _MOST_SECONDS:
        raise errors.Permanent(f"--checkpoint-minutes {checkpoint_minutes:g}: expected more than 0")
    recording, book, currency = _load(store, seconds, prices)
    pools = measure_pools(recording)
    found = advise(recording, pools, None if checkpoint_minutes is None else checkpoint_minutes / 60)
    values = describe(recording, pools, found, book) | {"currency": currency}
    if output == "table":
        terminal.write(_make_table(values))
    else:
        terminal.write(encode(values, output))
    return 0


def _load(store: str, seconds: int, prices: tuple[Path, ...]) -> tuple[Recording, PriceBook, str]:
    from kgwe.store.ledger import statements  # noqa: PLC0415 -- when the command runs
    from kgwe.store.ledger.ledger import Ledger  # noqa: PLC0415
    from kgwe.store.ledger.price_files import load_book  # noqa: PLC0415
    from kgwe.store.ledger.recordings import load_recording  # noqa: PLC0415

    book = load_book(prices)
    with Ledger.open(store, read_only=True) as ledger:
        state = statements.load_state(ledger)
        end_s = state.counted_until_s
        return load_recording(ledger.database, end_s - seconds, end_s, book), book, state.currency


def describe(recording: Recording, pools: list[SpotPool], found: list[Advice], book: PriceBook) -> dict[str, Any]:
    """Return plain values."""
    from kgwe.costing.dates import format_time  # noqa: PLC0415 -- when the command runs
    from kgwe.costing.money import HOUR_S  # noqa: PLC0415
    from kgwe.costing.reports.values import amount  # noqa: PLC0415

    return {
        "start": format_time(recording.start_s),
        "end": format_time(recording.end_s),
        "pools": [
            {
                "instanceType": each.pool.instance_type,
                "gpuModel": each.pool.model,
                "spotNodeHours": round(each.node_s / HOUR_S, 3),
                "interruptions": each.interruptions,
                "interruptionsPerDay": None if each.rate is None else round(24 * each.rate, 4),
                "interruptionsPerDayUpperBound": None if each.bound is None else round(24 * each.bound, 4),
                "spotPrice": None if each.spot is None else amount(each.spot),
                "onDemandPrice": None if each.on_demand is None else amount(each.on_demand),
                "spotPriceRange": _find_range(book, each.pool, recording.start_s, recording.end_s),
            }
            for each in pools
        ],
        "workloads": [
            {
                "name": each.owner,
                "instanceType": each.pool.instance_type,
                "pods": each.pods,
                "longestHours": round(each.longest_s / HOUR_S, 3),
                "onDemandCost": amount(each.on_demand),
                "spotCost": None if each.spot is None else amount(each.spot),
                "saves": amount(each.saves),
                "advice": str(each.verdict),
            }
            for each in found
        ],
        "saves": amount(sum(each.saves for each in found)),
    }


def _find_range(book: PriceBook, pool: Pool, start_s: int, end_s: int) -> list[str] | None:
    """Return the lowest and the highest spot price of a type in the book that were valid in a time."""
    from kgwe.costing.prices.book import Capacity  # noqa: PLC0415 -- when the command runs
    from kgwe.costing.reports.values import amount  # noqa: PLC0415

    listed = [
        each.micros_per_hour
        for each in book.prices
        if each.instance_type == pool.instance_type
        and each.capacity is Capacity.SPOT
        and each.valid_from_s < end_s
        and start_s < each.valid_until_s
    ]
    return [amount(min(listed)), amount(max(listed))] if listed and pool.instance_type else None


def _make_table(values: dict[str, Any]) -> str:
    from kgwe.costing.reports.texts import align  # noqa: PLC0415 -- when the command runs

    pools: list[tuple[str, ...]] = [
        ("TYPE", "SPOT", "ON-DEMAND", "SPOT-RANGE", "NODE-HOURS", "INTERRUPTIONS", "PER-DAY", "AT-MOST")
    ]
    for each in values["pools"]:
        span = each["spotPriceRange"]
        pools.append(
            (
                each["instanceType"] or each["gpuModel"],
                _show(each["spotPrice"]),
                _show(each["onDemandPrice"]),
                f"{_show(span[0])} to {_show(span[1])}" if span else "unknown",
                f"{each['spotNodeHours']:.1f}",
                str(each["interruptions"]),
                _show(each["interruptionsPerDay"]),
                _show(each["interruptionsPerDayUpperBound"]),
            )
        )
    heads = ("WORKLOAD", "TYPE", "PODS", "LONGEST-H", "ON-DEMAND", "ON-SPOT", "ADVICE")
    lines: list[tuple[str, ...]] = [heads, *(_list_cells(each) for each in values["workloads"][:_SHOWN])]
    more = len(values["workloads"]) - _SHOWN
    notes = [
        f"{values['start']} to {values['end']}, in {values['currency']}; advice saves {_show(values['saves'])}\n",
        align(pools),
        align(lines) + (f"and {more} more: -o json\n" if more > 0 else ""),
        "AT-MOST: interruptions per node and day, with a confidence of 90 %; the cost on spot is by this rate.",
        "checkpoint: spot is cheaper only with checkpoints; unknown: no spot node was seen, or no price is known.",
    ]
    return "\n".join(notes) + "\n"


def _list_cells(each: dict[str, Any]) -> tuple[str, ...]:
    amounts = _show(each["onDemandCost"]), _show(each["spotCost"])
    hours = f"{each['longestHours']:.1f}"
    return each["name"], each["instanceType"], str(each["pods"]), hours, *amounts, each["advice"]


def _show(value: str | float | None) -> str:
    return "unknown" if value is None else f"{float(value):,.2f}"
