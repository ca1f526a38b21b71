"""`kgwe cost`: what namespaces, teams and workloads cost."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from kgwe import terminal
from kgwe.cli.cost import ledger_access
from kgwe.cli.cost.ledger_access import Store  # noqa: TC001 - read by cyclopts when it runs

app = App(
    name="cost",
    help="""Show what pods cost, from the ledger of the cost engine.

The first lines are the books of the fleet: what is allocated, idle and unallocated sums to what the nodes cost. The
split method says how a node's price is divided between GPUs, CPUs and memory.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe cost                               namespaces, last 7 days
  kgwe cost --by team --last 30d          teams, last 30 days
  kgwe cost -n ml-team --by workload      workloads of a namespace
  kgwe cost --team vision -o csv          for a spreadsheet""",
)

By = Literal["namespace", "team", "project", "cost-center", "experiment", "user", "workload", "pod", "node", "model"]
Output = Annotated[Literal["table", "json", "yaml", "csv"], Parameter(name=["--output", "-o"])]


@app.default
def cost(
    *,
    by: By = "namespace",
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"])] = "",
    team: str = "",
    last: str = "7d",
    output: Output = "table",
    store: Store = ledger_access.DEFAULT_STORE,
) -> int:
    """Show costs.

    Parameters
    ----------
    by
        What each line is about. Workloads, pods, nodes and models are known for 90 days, the others for 365.
    namespace
        Only pods of this namespace.
    team
        Only pods of this team.
    last
        Time before the last count, such as 24h, 7d or 4w.
    output
        Output format.
    """
    from kgwe.cli.cost.rendering import render  # noqa: PLC0415 -- when the command runs

    statements = ledger_access.load_statements(store, last, (by,), namespace, team)
    terminal.write(render(statements, output))
    return 0
