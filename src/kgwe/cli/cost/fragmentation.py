"""`kgwe report fragmentation`: what GPUs cost that no pod held, by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.cli.cost import ledger_access
from kgwe.cli.cost.ledger_access import Store  # noqa: TC001 - read by cyclopts when it runs

if TYPE_CHECKING:
    from kgwe.costing.fragmentation import Cause, Fragment

app = App(
    name="fragmentation",
    help="""Show what was paid for and held by no pod, by cause. The causes sum to unallocated and reserved idle.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe report fragmentation
  kgwe report fragmentation --last 24h -o json""",
)
Output = Annotated[Literal["table", "json", "yaml", "csv"], Parameter(name=["--output", "-o"])]
_MOST_SECONDS: Final = 90 * 86_400
_WORDS: Final = {
    "starting": "nodes before their first pod: boot, drivers, images",
    "draining": "nodes after their last pod, until they were returned",
    "empty": "nodes without pods at other times",
    "beside": "whole GPUs that were free on nodes with pods",
    "parts": "the rest of GPUs of which pods held shares or slices",
    "host": "CPUs and memory that no pod requested",
}


@app.default
def fragmentation(*, last: str = "7d", output: Output = "table", store: Store = ledger_access.DEFAULT_STORE) -> int:
    """Show the cost of no pod by cause.

    Parameters
    ----------
    last
        Time before the last count, such as 24h, 7d or 4w; at most 90 days.
    output
        Output format.
    """
    from kgwe.cli.cost.rendering import encode  # noqa: PLC0415 -- when the command runs
    from kgwe.costing.dates import format_time  # noqa: PLC0415
    from kgwe.costing.money import HOUR_S, MICROS, format_dollars, round_lines  # noqa: PLC0415
    from kgwe.costing.reports.texts import align, write_csv  # noqa: PLC0415
    from kgwe.costing.reports.values import amount  # noqa: PLC0415

    seconds = ledger_access.parse_last(last)
    if seconds > _MOST_SECONDS:
        raise errors.Permanent(f"--last {last}: what pods held is kept for 90 days")
    start_s, end_s, currency, found = _load(store, seconds)
    micros = round_lines([each.ticks for each in found.values()])
    hours = [each.ppm_s / MICROS / HOUR_S for each in found.values()]
    lines = list(zip(found, micros, hours, strict=True))
    if output == "csv":
        rows = [("cause", "cost", "gpuHours"), *((name, amount(cost), f"{gpu:.6f}") for name, cost, gpu in lines)]
        terminal.write(write_csv(rows))
    elif output == "table":
        total = sum(micros)
        cells = [
            (str(name), format_dollars(cost), f"{gpu:.1f}", f"{100 * cost / total:.1f} %" if total else "")
            for name, cost, gpu in lines
        ]
        terminal.write(f"{format_time(start_s)} to {format_time(end_s)}, in {currency}\n\n")
        terminal.write(
            align([("CAUSE", "COST", "GPU-HOURS", "SHARE"), *cells, ("total", format_dollars(total), "", "")])
        )
        terminal.write("\n" + "".join(f"{name}: {words}\n" for name, words in _WORDS.items()))
    else:
        causes = [
            {"cause": str(name), "means": _WORDS[name], "cost": amount(cost), "gpuHours": round(gpu, 6)}
            for name, cost, gpu in lines
        ]
        head = {"start": format_time(start_s), "end": format_time(end_s), "currency": currency}
        terminal.write(encode(head | {"total": amount(sum(micros)), "causes": causes}, output))
    return 0


def _load(store: str, seconds: int) -> tuple[int, int, str, dict[Cause, Fragment]]:
    from kgwe.costing.fragmentation import price_causes  # noqa: PLC0415 -- when the command runs
    from kgwe.store.ledger import statements  # noqa: PLC0415
    from kgwe.store.ledger.fragments import load_histories  # noqa: PLC0415
    from kgwe.store.ledger.ledger import Ledger  # noqa: PLC0415

    with Ledger.open(store, read_only=True) as ledger:
        state = statements.load_state(ledger)
        end_s = state.counted_until_s
        histories = load_histories(ledger.database, end_s - seconds, end_s)
    return end_s - seconds, end_s, state.currency, price_causes(histories)
