"""`kgwe report savings`: what sharing, placement and spot saved, by replays of what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from kgwe import errors
from kgwe.cli.cost import ledger_access
from kgwe.cli.cost.ledger_access import Investment, Store  # noqa: TC001 - read by cyclopts when it runs

if TYPE_CHECKING:
    from kgwe.cli.cost.returns import Return
    from kgwe.scaling.replay.recording import Delays, Recording
    from kgwe.scaling.replay.savings import Outcome, Savings

app = App(
    name="savings",
    help="""Show what sharing, placement and spot nodes saved, and what a better placement could still save.

The recorded pods are replayed by the scheduler's engine: on whole GPUs and on-demand nodes (the baseline), then with
one difference after the other. A node is bought when a pod fits nowhere, and returned when it stays empty. Starts, run
times, sizes, prices and delays of nodes are those of the ledger.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe report savings                         the last 7 days
  kgwe report savings --last 30d -o json
  kgwe report savings --keep-nodes            nodes that are owned: none is returned
  kgwe report savings --roi --investment 300  the return on what KGWE costs per month""",
)
Output = Annotated[Literal["table", "json", "yaml", "csv"], Parameter(name=["--output", "-o"])]
METHOD: Final = "recorded pods replayed by the placement engine"
_MOST_SECONDS: Final = 90 * 86_400
_LOSS: Final = "saved is negative: the recorded fleet cost more than the baseline would need."
_WORDS: Final = {
    "baseline": "whole GPUs for every pod, on the node with the most free GPUs, all nodes on demand",
    "shared": "the baseline, with shares and MIG slices as recorded",
    "packed": "the same, each pod on the fullest node with room",
    "optimized": "the same, spot nodes for the pods that ran on spot",
}


@app.default
def savings(
    *,
    last: str = "7d",
    idle_minutes: float | None = None,
    keep_nodes: bool = False,
    replays: int = 30,
    prices: tuple[Path, ...] = (),
    roi: bool = False,
    investment: Investment = ledger_access.DEFAULT_INVESTMENT,
    output: Output = "table",
    file: Path | None = None,
    store: Store = ledger_access.DEFAULT_STORE,
) -> int:
    """Show savings.

    Parameters
    ----------
    last
        Time before the last count, such as 24h, 7d or 4w; at most 90 days.
    idle_minutes
        Minutes after which an empty node is returned. Default: as it was recorded, by the median.
    keep_nodes
        Nodes are never returned, such as hardware that you own: fewer nodes are saved, not hours.
    replays
        Replays of each scenario, at most. They end when their mean is known to half a percent.
    prices
        Price files, for on-demand prices of types that only ran on spot. Built-in prices apply where no file has one.
    roi
        Also show the return on investment: what was saved, beside what KGWE costs.
    investment
        Dollars that KGWE costs per month, for --roi. The default is an assumption: state your own.
    output
        Output format.
    file
        Where to write it. Default: the terminal.
    """
    from kgwe.cli.cost import files, returns  # noqa: PLC0415 -- when the command runs
    from kgwe.scaling.replay.savings import measure_savings  # noqa: PLC0415 -- loads NumPy

    if keep_nodes and idle_minutes is not None:
        raise errors.Permanent("--idle-minutes and --keep-nodes exclude each other")
    if idle_minutes is not None and not 0 <= idle_minutes <= _MOST_SECONDS / 60:
        raise errors.Permanent(f"--idle-minutes {idle_minutes:g}: expected 0 or more, and at most 90 days")
    if not 1 <= replays <= 100:  # noqa: PLR2004 -- each takes seconds
        raise errors.Permanent(f"--replays {replays}: expected 1 to 100")
    seconds = ledger_access.parse_last(last)
    if seconds > _MOST_SECONDS:
        raise errors.Permanent(f"--last {last}: what pods held is kept for 90 days")
    recording, currency = _load(store, seconds, prices)
    if not recording.nodes:
        raise errors.Permanent("no node was metered in this time: try a longer --last")
    found = measure_savings(recording, _choose_delays(recording, idle_minutes, keep=keep_nodes), replays=replays)
    gain = returns.make_return(investment, recording.end_s - recording.start_s, found.saved, METHOD) if roi else None
    files.write_text(_render(recording, found, currency, output, gain), file)
    return 0


def _load(store: str, seconds: int, prices: tuple[Path, ...]) -> tuple[Recording, str]:
    from kgwe.store.ledger import statements  # noqa: PLC0415 -- when the command runs
    from kgwe.store.ledger.ledger import Ledger  # noqa: PLC0415
    from kgwe.store.ledger.price_files import load_book  # noqa: PLC0415
    from kgwe.store.ledger.recordings import load_recording  # noqa: PLC0415

    with Ledger.open(store, read_only=True) as ledger:
        state = statements.load_state(ledger)
        end_s = state.counted_until_s
        return load_recording(ledger.database, end_s - seconds, end_s, load_book(prices)), state.currency


def _choose_delays(recording: Recording, idle_minutes: float | None, *, keep: bool) -> Delays:
    found = recording.measure_delays()
    if keep:
        return found._replace(tail_s=None)
    return found if idle_minutes is None else found._replace(tail_s=round(60 * idle_minutes))


def _render(recording: Recording, found: Savings, currency: str, output: str, gain: Return | None) -> str:
    from kgwe.cli.cost import returns  # noqa: PLC0415 -- when the command runs
    from kgwe.cli.cost.rendering import encode  # noqa: PLC0415
    from kgwe.costing.reports.texts import write_csv  # noqa: PLC0415

    values = describe(recording, found, currency)
    if output == "csv":
        columns = ("scenario", "cost", "least", "most", "nodeHours", "nodes")
        rows = [[line[name] for name in columns] for line in values["scenarios"]]
        return write_csv([columns, ["recorded", values["recorded"], "", "", "", ""], *rows])
    if output != "table":
        return encode(values | ({"roi": returns.describe(gain)} if gain else {}), output)
    return make_table(recording, found, currency) + (returns.explain(gain) if gain else "")


def describe(recording: Recording, found: Savings, currency: str) -> dict[str, Any]:
    """Return plain values."""
    from kgwe.costing.dates import format_time  # noqa: PLC0415 -- when the command runs
    from kgwe.costing.reports.values import amount  # noqa: PLC0415

    return {
        "start": format_time(recording.start_s),
        "end": format_time(recording.end_s),
        "currency": currency,
        "method": METHOD,
        "recorded": amount(found.recorded),
        "prepaid": amount(found.prepaid),
        "baseline": amount(found.baseline),
        "optimized": amount(found.optimized),
        "saved": amount(found.saved),
        "possible": amount(found.possible),
        "steps": {name: amount(micros) for name, micros in found.list_steps()},
        "scenarios": [_describe_outcome(each) for each in found.outcomes],
        "allocations": found.allocations,
        "nodeLeadSeconds": found.delays.lead_s,
        "nodeIdleSeconds": found.delays.tail_s,
        "unpricedPools": [" ".join(map(str, each)) for each in found.unpriced],
        "poolsWithoutOnDemandPrice": [" ".join(map(str, each)) for each in found.assumed_spot],
    }


def _describe_outcome(outcome: Outcome) -> dict[str, Any]:
    from kgwe.costing.money import HOUR_S  # noqa: PLC0415 -- when the command runs
    from kgwe.costing.reports.values import amount  # noqa: PLC0415

    return {
        "scenario": outcome.scenario.name,
        "means": _WORDS[outcome.scenario.name],
        "cost": amount(outcome.micros),
        "least": amount(outcome.least),
        "most": amount(outcome.most),
        "nodeHours": round(outcome.node_s / HOUR_S, 3),
        "nodes": outcome.nodes,
        "replays": outcome.replays,
    }


def make_table(recording: Recording, found: Savings, currency: str) -> str:
    """Return the report for people."""
    from kgwe.costing.dates import format_time  # noqa: PLC0415 -- when the command runs
    from kgwe.costing.money import HOUR_S, format_dollars  # noqa: PLC0415
    from kgwe.costing.reports.texts import align  # noqa: PLC0415

    hours = sum(each.paid_s for each in recording.nodes) / HOUR_S
    rows: list[tuple[str, ...]] = [("SCENARIO", "COST", "LEAST", "MOST", "NODE-HOURS", "NODES", "REPLAYS")]
    for each in found.outcomes:
        amounts = map(format_dollars, (each.micros, each.least, each.most))
        rows.append((each.scenario.name, *amounts, f"{each.node_s / HOUR_S:.1f}", str(each.nodes), str(each.replays)))
    recorded = format_dollars(found.recorded)
    rows.append(("recorded", recorded, "", "", f"{hours:.1f}", "", ""))
    steps = [("STEP", "SAVES"), *((name, format_dollars(micros)) for name, micros in found.list_steps())]
    share = f" ({100 * found.saved / found.baseline:.1f} %)" if found.baseline else ""
    lines = [
        f"{format_time(recording.start_s)} to {format_time(recording.end_s)}, in {currency}; method: {METHOD}",
        f"saved {format_dollars(found.saved)}{share} = baseline {format_dollars(found.baseline)} - recorded {recorded}",
        f"still possible {format_dollars(found.possible)} = recorded - optimized {format_dollars(found.optimized)}",
        *([_LOSS] if found.saved < 0 else []),
        "",
        align(rows),
        align(steps),
        *(f"{name}: {words}" for name, words in _WORDS.items()),
        *_list_notes(found),
    ]
    return "\n".join(lines) + "\n"


def _list_notes(found: Savings) -> list[str]:
    from kgwe.costing.money import format_dollars  # noqa: PLC0415 -- when the command runs

    delays = found.delays
    lead = f"{delays.lead_s} s before its first pod" if delays.leads else "not before its first pod (none began here)"
    if delays.tail_s is None:
        tail = "it is never returned"
    else:
        tail = f"it is returned {delays.tail_s} s after its last pod"
        tail += "" if delays.tails or delays.tail_s else " (none was returned here)"
    notes = [f"{found.allocations} allocations. A node is paid {lead}, and {tail}."]
    if found.prepaid:
        notes.append(f"{format_dollars(found.prepaid)} are paid in advance, and the same in every scenario.")
    words = "no on-demand price is known, so spot saves nothing here."
    notes += [f"{pool.instance_type or pool.model}: {words}" for pool in found.assumed_spot]
    words = "no price is known; it is in no amount."
    return notes + [f"{pool.instance_type or pool.model}: {words}" for pool in found.unpriced]
