"""`kgwe report`: the chargeback report of the whole fleet, and its FOCUS export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.cli.cost import fragmentation, ledger_access, savings, spot
from kgwe.cli.cost.ledger_access import Store  # noqa: TC001 - read by cyclopts when it runs

if TYPE_CHECKING:
    from kgwe.costing.focus.columns import FocusVersion

app = App(
    name="report",
    help="""Write a chargeback report: the books of the fleet, and costs by namespace, team, project and cost center.

Each section has the same total: what pods held. With --focus-version it writes the charges in the format of the FinOps
Foundation instead, one row for each pod, node and period.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe report --last 30d
  kgwe report --last 30d -o csv > chargeback.csv
  kgwe report --last 30d -o html --file report.html
  kgwe report --team vision -o json
  kgwe report savings --last 7d
  kgwe report fragmentation --last 7d
  kgwe report spot --last 30d
  kgwe report --last 30d --focus-version 1.2 --file charges.csv
  kgwe report --last 30d --focus-version 1.3 -o parquet --file charges.parquet""",
)

for _each in (savings, fragmentation, spot):
    app.command(_each.app)
_SECTIONS: Final = ("namespace", "team", "project", "cost-center", "experiment", "user")
Output = Annotated[
    Literal["table", "json", "yaml", "csv", "html", "pdf", "parquet"], Parameter(name=["--output", "-o"])
]


@app.default
def report(
    *,
    last: str = "30d",
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"])] = "",
    team: str = "",
    restated: bool = False,
    focus_version: str = "",
    period: Literal["hour", "day"] = "day",
    cluster: str = "kgwe",
    output: Output = "table",
    file: Path | None = None,
    store: Store = ledger_access.DEFAULT_STORE,
) -> int:
    """Write the report.

    Parameters
    ----------
    last
        Time before the last count, such as 24h, 7d or 4w.
    namespace
        Only pods of this namespace.
    team
        Only pods of this team.
    restated
        Amounts of imported bills, where there are any (see `kgwe bill`).
    focus_version
        Write charges in FOCUS format: 1.2 or 1.3, as CSV or Parquet.
    period
        Length of a charge in a FOCUS file.
    cluster
        The billing account in a FOCUS file.
    output
        Output format. PDF and Parquet need the extra `reports` and --file.
    file
        Where to write it. Default: the terminal.
    """
    from kgwe.cli.cost import files, pdf  # noqa: PLC0415 -- when the command runs
    from kgwe.cli.cost.rendering import render  # noqa: PLC0415
    from kgwe.costing.focus.columns import parse_version  # noqa: PLC0415

    if output in {"pdf", "parquet"} and file is None:
        raise errors.Permanent(f"-o {output} needs --file: it is no text")
    if focus_version:
        version = parse_version(focus_version)
        wanted = {"restated": restated, "period": period, "cluster": cluster}
        return _write_focus(version, ledger_access.parse_last(last), wanted, output, file=file, store=store)
    if output == "parquet":
        raise errors.Permanent("-o parquet needs --focus-version 1.2 or 1.3")
    statements = ledger_access.load_statements(store, last, _SECTIONS, namespace, team, restated=restated)
    if output == "pdf" and file is not None:
        pdf.write_pdf(statements, file)
    else:
        files.write_text(render(statements, output), file)
    return 0


def _write_focus(
    version: FocusVersion, seconds: int, wanted: dict[str, Any], output: str, *, file: Path | None, store: str
) -> int:
    from kgwe.cli.cost import files  # noqa: PLC0415 -- when the command runs
    from kgwe.costing.focus.columns import list_columns  # noqa: PLC0415
    from kgwe.store.ledger.focus import load_focus_rows  # noqa: PLC0415
    from kgwe.store.ledger.ledger import Ledger  # noqa: PLC0415

    if output not in {"table", "csv", "parquet"}:
        raise errors.Permanent(f"a FOCUS file is csv or parquet, not {output}")
    with Ledger.open(store, read_only=True) as ledger:
        rows = load_focus_rows(ledger, version, seconds, **wanted)
    if not rows:
        whole = "whole days" if wanted.get("period", "day") == "day" else "whole hours"
        terminal.write_error(
            f"No charges: a FOCUS file has {whole} only, in UTC. Try --period hour, or a longer --last.\n"
        )
    columns = list_columns(version)
    if output == "parquet" and file is not None:
        files.write_parquet(columns, rows, file)
    else:
        files.write_text(files.make_rows_csv(columns, rows), file)
    return 0
