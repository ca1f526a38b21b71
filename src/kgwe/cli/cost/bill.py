"""`kgwe bill`: compares a bill of the cloud with the ledger, and restates history by it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from kgwe import terminal
from kgwe.cli.cost import ledger_access
from kgwe.cli.cost.ledger_access import Store  # noqa: TC001 - read by cyclopts when it runs

if TYPE_CHECKING:
    from kgwe.costing.bills.reconcile import Reconciliation

app = App(
    name="bill",
    help="""Compare a bill with the ledger, node-hour by node-hour, and name each difference.

The bill is a FOCUS file or an AWS Cost and Usage Report (CSV, also .gz). With --restate the ledger keeps the billed
amounts: `kgwe cost --restated` and `kgwe report --restated` show them, and sum to the bill.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bill 2026-10.csv                    differences between book and bill
  kgwe bill 2026-10.csv --only-known       without resources of other clusters
  kgwe bill 2026-10.csv --restate          keep the billed amounts""",
)
Output = Annotated[Literal["table", "json", "yaml", "csv"], Parameter(name=["--output", "-o"])]
_MEANINGS: Final = {
    "equal": "billed as the book says",
    "rate": "billed at another rate",
    "duration": "billed for another time than metered",
    "unpriced": "the book has no price for this type",
    "not-billed": "metered, but not on the bill",
    "not-metered": "billed, but not metered at that time",
    "unknown-resource": "billed for a resource that was never metered",
    "no-resource": "taxes, fees and credits",
}


@app.default
def bill(
    file: Path,
    *,
    effective: bool = False,
    only_known: bool = False,
    restate: bool = False,
    output: Output = "table",
    store: Store = ledger_access.DEFAULT_STORE,
) -> int:
    """Compare a bill.

    Parameters
    ----------
    file
        The bill.
    effective
        Use amortised amounts instead of billed ones.
    only_known
        Leave out lines of resources that were never metered.
    restate
        Keep the billed amounts in the ledger. With SQLite the cost engine must not run; it has `billFiles` for this.
    output
        Output format.
    """
    from kgwe.store.ledger import bill_files  # noqa: PLC0415 -- loads NumPy and SQLAlchemy
    from kgwe.store.ledger.ledger import Ledger  # noqa: PLC0415

    found, digest = bill_files.load_bill(file, effective=effective)
    with Ledger.open(store, read_only=not restate) as ledger:
        result = bill_files.compare_bill(ledger, found, only_known=only_known)
        is_new = bill_files.store_bill(ledger, file.name, digest, result, int(time.time())) if restate else None
    terminal.write(_render(result, output))
    if is_new is not None and output == "table":
        told = "The history is restated by it." if is_new else "This bill was imported before; nothing changed."
        terminal.write(f"{told}\n")
    return 0


def _render(result: Reconciliation, output: str) -> str:
    from kgwe.cli.cost.rendering import encode  # noqa: PLC0415 -- when the command runs
    from kgwe.costing.reports.texts import align, write_csv  # noqa: PLC0415

    if output in {"json", "yaml"}:
        return encode(_describe(result), output)
    rows = [_cells(each) for each in _describe(result)["differences"]]
    headings = ("CAUSE", "TYPE", "NODE-HOURS", "BOOK", "BILLED", "DIFFERENCE", "PERCENT")
    if output == "csv":
        return write_csv([tuple(name.lower() for name in headings), *rows])
    values = _describe(result)
    lines = [
        f"{values['start']} to {values['end']}, in {result.currency}",
        f"bill {values['billed']}, book {values['book']}: difference {values['difference']}",
        "",
        align([headings, *rows]),
    ]
    causes = dict.fromkeys(str(each.cause) for each in result.differences)
    lines += [f"{cause}: {_MEANINGS[cause]}" for cause in causes]
    return "\n".join(lines) + "\n"


def _describe(result: Reconciliation) -> dict[str, Any]:
    from kgwe.costing.dates import format_time  # noqa: PLC0415 -- when the command runs
    from kgwe.costing.reports.values import amount  # noqa: PLC0415

    return {
        "start": format_time(result.start_s),
        "end": format_time(result.end_s),
        "currency": result.currency,
        "billed": amount(result.billed_micros),
        "book": amount(result.book_micros),
        "difference": amount(result.billed_micros - result.book_micros),
        "differences": [
            {
                "cause": str(each.cause),
                "instanceType": each.instance_type,
                "nodeHours": each.node_hours,
                "book": amount(each.book_micros),
                "billed": amount(each.billed_micros),
                "difference": amount(each.micros),
                "percent": None if each.percent_milli is None else each.percent_milli / 1000,
            }
            for each in result.differences
        ],
    }


def _cells(difference: dict[str, Any]) -> tuple[str, ...]:
    percent = "" if difference["percent"] is None else f"{difference['percent']:.3f}"
    kind = difference["instanceType"] or "(none)"
    hours = str(difference["nodeHours"])
    return (
        difference["cause"],
        kind,
        hours,
        difference["book"],
        difference["billed"],
        difference["difference"],
        percent,
    )
