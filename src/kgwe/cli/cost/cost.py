"""`kgwe cost`: what namespaces, teams and workloads cost."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.cli.cost import ledger_access
from kgwe.cli.cost.ledger_access import Investment, Store  # noqa: TC001 - read by cyclopts when it runs

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
  kgwe cost --team vision -o csv          for a spreadsheet
  kgwe cost --last 30d --roi --savings 900 --investment 300
                                          the return on what KGWE costs, by figures of yours
  kgwe cost --last 30d --roi --savings-from history.db
                                          by the savings that the optimizer verified""",
)

By = Literal["namespace", "team", "project", "cost-center", "experiment", "user", "workload", "pod", "node", "model"]
Output = Annotated[Literal["table", "json", "yaml", "csv", "html"], Parameter(name=["--output", "-o"])]


@app.default
def cost(
    *,
    by: By = "namespace",
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"])] = "",
    team: str = "",
    last: str = "7d",
    roi: bool = False,
    savings: str = "",
    savings_from: str = "",
    investment: Investment = ledger_access.DEFAULT_INVESTMENT,
    restated: bool = False,
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
    roi
        Also show the return on investment: savings of the time, beside what KGWE costs. Every input is shown.
    savings
        Dollars that were saved in the time, for --roi: a figure of yours.
    savings_from
        Store of the optimizer (path, or postgresql://…), for --roi: it has the savings that were verified.
    investment
        Dollars that KGWE costs per month, for --roi. The default is an assumption: state your own.
    restated
        Amounts of imported bills, where there are any (see `kgwe bill`).
    output
        Output format.
    """
    if (savings or savings_from) and not roi:
        raise errors.Permanent("--savings and --savings-from are inputs of --roi: add it")
    from kgwe.cli.cost import returns  # noqa: PLC0415 -- when the command runs
    from kgwe.cli.cost.rendering import render  # noqa: PLC0415

    statements = ledger_access.load_statements(store, last, (by,), namespace, team, restated=restated)
    inputs = returns.Inputs(investment, savings, savings_from)
    found = returns.load_return(store, statements[0], inputs) if roi else None
    terminal.write(render(statements, output, {"roi": returns.describe(found)} if found else None))
    if found and output == "table":
        terminal.write(returns.explain(found))
    return 0
