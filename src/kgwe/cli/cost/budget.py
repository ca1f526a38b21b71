"""`kgwe budget`: budgets and what they have spent, why one acts, and acknowledging its alerts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.model.units.phrasing import format_count
from kgwe.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.kube.api.kgwe.gpubudget import GPUBudget

app = App(
    name="budget",
    help="Show budgets: what they have spent, what is encumbered, and which workloads wait because of them.",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe budget list                            all budgets that you may read
  kgwe budget list -n research -o json
  kgwe budget explain monthly -n research     spend, alerts, and the workloads that wait
  kgwe budget acknowledge monthly -n research""",
)

Kubeconfig = Annotated[Path | None, Parameter(env_var="KUBECONFIG")]
Namespace = Annotated[str | None, Parameter(name=["--namespace", "-n"])]
Output = Annotated[Literal["text", "json", "yaml"], Parameter(name=["--output", "-o"])]
_COLUMNS = ("NAMESPACE", "BUDGET", "LIMIT", "SPENT", "ENCUMBERED", "PROJECTED", "USED", "POLICY", "WAITING", "STATUS")
_REASON = "BudgetExceeded"


class BudgetRow(msgspec.Struct, frozen=True, rename="camel"):
    """A budget as it is printed."""

    namespace: str
    name: str
    limit: str
    unit: str
    period: str
    spent: str
    encumbered: str
    projected: str
    used_percent: float | None
    policy: str
    waiting: int
    status: str


class BudgetExplanation(msgspec.Struct, frozen=True):
    """A budget with its status, and what waits because of it."""

    budget: BudgetRow
    status: dict[str, Any]
    waiting: list[str]


@app.command(name="list", help_epilogue="Examples:\n  kgwe budget list -A\n  kgwe budget list -n research -o yaml")
def list_budgets(
    *,
    namespace: Namespace = None,
    all_namespaces: Annotated[bool, Parameter(name=["--all-namespaces", "-A"], negative="")] = False,
    output: Output = "text",
    kubeconfig: Kubeconfig = None,
) -> int:
    """List budgets.

    Parameters
    ----------
    namespace
        Only this namespace. Default: all.
    all_namespaces
        All namespaces, which is the default.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig file.
    """
    logs.configure(level="error")

    async def read() -> list[GPUBudget]:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-budget") as client:
            return list(await client.list(resources.GPU_BUDGET, None if all_namespaces else namespace))

    rows = [make_row(each) for each in sorted(asyncio.run(read()), key=lambda each: each.metadata.key)]
    terminal.write(print_rows(rows, output))
    return 0


@app.command(
    help_epilogue="Examples:\n  kgwe budget explain monthly -n research\n  kgwe budget explain monthly -o json"
)
def explain(
    name: str,
    /,
    *,
    namespace: Namespace = None,
    output: Output = "text",
    kubeconfig: Kubeconfig = None,
) -> int:
    """Show the status of a budget, and the workloads that wait because of it.

    Parameters
    ----------
    name
        Name of the GPUBudget.
    namespace
        Its namespace. Default: the namespace of the kubeconfig's context.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig file.
    """
    logs.configure(level="error")

    async def read() -> tuple[GPUBudget, list[Any]]:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-budget") as client:
            where = namespace or client.namespace
            budget = await client.get(resources.GPU_BUDGET, name, where)
            kinds = (resources.GPU_WORKLOAD, resources.WARP_GPU_WORKLOAD)
            found = [each for kind in kinds for each in await _list_readable(client, kind, where)]
            return budget, found

    budget, workloads = asyncio.run(read())
    waiting = [line for each in workloads if (line := _describe_waiting(each, budget.metadata.key))]
    told = BudgetExplanation(make_row(budget), msgspec.to_builtins(budget.status), waiting)
    terminal.write(print_explanation(told, budget, output))
    return 0


@app.command(help_epilogue="Examples:\n  kgwe budget acknowledge monthly -n research")
def acknowledge(name: str, /, *, namespace: Namespace = None, kubeconfig: Kubeconfig = None) -> int:
    """Acknowledge the alerts of this period. They are not raised again, and start again with the next period.

    Parameters
    ----------
    name
        Name of the GPUBudget.
    namespace
        Its namespace. Default: the namespace of the kubeconfig's context.
    kubeconfig
        Path of the kubeconfig file.
    """
    logs.configure(level="error")

    async def act() -> int:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-budget") as client:
            where = namespace or client.namespace
            budget = await client.get(resources.GPU_BUDGET, name, where)
            alerts = [msgspec.to_builtins(each) | {"acknowledged": True} for each in budget.status.alerts]
            body = {"metadata": {"resourceVersion": budget.metadata.resourceVersion}, "status": {"alerts": alerts}}
            if alerts:
                await client.patch(resources.GPU_BUDGET, name, body, where, subresource="status")
            return len(alerts)

    count = asyncio.run(act())
    terminal.write(
        f"acknowledged {format_count(count, 'alert')} of {name}\n"
        if count
        else f"{name} has no alerts in this period\n"
    )
    return 0


async def _list_readable(client: KubeClient, kind: Any, namespace: str) -> Iterable[Any]:
    """Return the workloads of all namespaces, or of the budget's where the user may not read more."""
    try:
        return list(await client.list(kind))
    except errors.KgweError:
        return list(await client.list(kind, namespace))


def _describe_waiting(workload: Any, budget: str) -> str:
    for condition in workload.status.conditions:
        if condition.reason == _REASON and condition.status == "False" and f"Budget {budget} " in condition.message:
            return f"{workload.metadata.key}: {condition.message}"
    return ""


def make_row(budget: GPUBudget) -> BudgetRow:
    """Return the row of a budget."""
    spec, status = budget.spec, budget.status
    conditions = {each.type: each for each in status.conditions}
    ready = conditions.get("Ready")
    if ready is None:
        state = "NotCounted"
    elif ready.status != "True":
        state = ready.reason
    elif status.exceededSince is not None:
        state = "Exceeded"
    else:
        state = "Acting" if status.enforcementActive else "OK"
    return BudgetRow(
        budget.metadata.namespace,
        budget.metadata.name,
        spec.limit,
        spec.currency if spec.unit == "Currency" else "GPU-hours",
        spec.period,
        status.currentSpend,
        status.encumbered,
        status.projectedSpend,
        status.utilizationPercent,
        spec.enforcementPolicy,
        status.waitingWorkloads,
        state,
    )


def print_rows(rows: list[BudgetRow], output: str) -> str:
    """Return the budgets as text."""
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(rows), indent=2).decode() + "\n"
    if output == "yaml":
        return msgspec.yaml.encode(rows).decode()
    if not rows:
        return "There are no budgets. Create one: docs/budgets.md has examples.\n"
    table = [_COLUMNS, *(_print_cells(row) for row in rows)]
    widths = [max(len(line[number]) for line in table) for number in range(len(_COLUMNS))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table)
    return "\n".join(lines) + "\n"


def print_explanation(told: BudgetExplanation, budget: GPUBudget, output: str) -> str:
    """Return the explanation as text."""
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n"
    if output == "yaml":
        return msgspec.yaml.encode(told).decode()
    row, status = told.budget, budget.status
    used = f" ({row.used_percent:g} %)" if row.used_percent is not None else ""
    lines = [
        f"Budget {row.namespace}/{row.name}: {row.status}",
        f"  {row.spent or '0'} of {row.limit} {row.unit} spent{used}, {row.encumbered or '0'} encumbered; {row.policy}",
        f"  Period {row.period}: {status.periodStart or 'unknown'} to {status.periodEnd or 'unknown'}",
    ]
    if status.projectedSpend:
        interval = f", between {status.projectedLow} and {status.projectedHigh}" if status.projectedLow else ""
        lines.append(f"  Projected: {status.projectedSpend}{interval}")
    for each in status.alerts:
        seen = ", acknowledged" if each.acknowledged else ""
        lines.append(f"  Alert: {each.threshold:.0%} reached at {each.triggeredAt}{seen}")
    lines += [f"  {each.type}: {each.message}" for each in status.conditions if each.message]
    count = len(told.waiting)
    verb = "waits" if count == 1 else "wait"
    lines.append(f"  {format_count(count, 'workload')} {verb} because of it" + (":" if count else "."))
    lines += [f"    {each}" for each in told.waiting]
    return "\n".join(lines) + "\n"


def _print_cells(row: BudgetRow) -> tuple[str, ...]:
    used = "-" if row.used_percent is None else f"{row.used_percent:.1f}%"
    cells = (row.spent or "-", row.encumbered or "-", row.projected or "-", used, row.policy, str(row.waiting))
    return (row.namespace, row.name, f"{row.limit} {row.unit}", *cells, row.status)
