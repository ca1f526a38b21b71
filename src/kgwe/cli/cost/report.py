"""`kgwe report`: the chargeback report of the whole fleet."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import App, Parameter

from kgwe import terminal
from kgwe.cli.cost import ledger_access
from kgwe.cli.cost.cost import Output  # noqa: TC001 - read by cyclopts when it runs
from kgwe.cli.cost.ledger_access import Store  # noqa: TC001 - read by cyclopts when it runs

app = App(
    name="report",
    help="""Write a chargeback report: the books of the fleet, and costs by namespace, team, project and cost center.

Each section has the same total: what pods held.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe report --last 30d
  kgwe report --last 30d -o csv > chargeback.csv
  kgwe report --team vision -o json""",
)

_SECTIONS: Final = ("namespace", "team", "project", "cost-center", "experiment", "user")


@app.default
def report(
    *,
    last: str = "30d",
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"])] = "",
    team: str = "",
    output: Output = "table",
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
    output
        Output format.
    """
    from kgwe.cli.cost.rendering import render  # noqa: PLC0415 -- when the command runs

    terminal.write(render(ledger_access.load_statements(store, last, _SECTIONS, namespace, team), output))
    return 0
