"""The live screen of `make run`."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from kgwe.kube.api.kgwe.gpuworkload_status import Phase
from kgwe.kube.translate import podspec
from kgwe.model.units import amounts
from kgwe.visible_text import escape_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kgwe.local.demo.demo import Endpoints, Seen, View

_PHASE_STYLE = {
    "Pending": "yellow",
    "Scheduling": "yellow",
    "Scheduled": "cyan",
    "Running": "bold green",
    "Succeeded": "green",
    "Failed": "bold red",
}
# Short names of the two kinds, as kubectl takes them.
_SHORT = {"kgwe.nvidia.io": "gw", "gpu.warp.dev": "gpuw"}
_BAR = 24
_MAX_FINDINGS = 5
_HINT = 42
# Phases in the order in which workloads are shown where not all have room.
_URGENCY = ("Running", "Scheduled", "Scheduling", "Pending", "Failed", "Succeeded")
# Lines of the screen beside the rows of workloads, the fleet and the findings: frames, headings and commands.
_OTHER_LINES = 25
_FEWEST_ROWS = 3
_LINES_PER_MESSAGE = 4
DEFAULT_OPTIMIZER = "127.0.0.1:50051"


def render(view: View, *, name: str, endpoints: Endpoints, started: float, height: int = 0) -> RenderableType:
    """Return the screen: workloads, the fleet, wasted GPUs, then commands to try.

    `height`: lines of the terminal; of many workloads only so many are shown that the rest stays visible. 0: all.
    """
    fleet = _build_fleet_table(view)
    others = _OTHER_LINES + fleet.row_count + min(len(view.findings or ()), _MAX_FINDINGS)
    rows = max(height - others, _FEWEST_ROWS) if height else _LINES_PER_MESSAGE * len(view.seen)
    title = _make_cell(f"KGWE on local cluster {name!r}, up {time.monotonic() - started:.0f} s")
    return Group(
        Panel(_build_workload_table(view, rows), title=title, border_style="green"),
        Panel(fleet, title="Fleet"),
        Panel(_build_findings(view), title="Wasted GPUs (kgwe optimize)"),
        Panel(_build_costs(view), title="Dollars per hour, and budgets"),
        *([Text(f"  Console: {endpoints.sign_in}", no_wrap=True, overflow="fold")] if endpoints.sign_in else []),
        _format_hints(name, endpoints),
    )


def _build_workload_table(view: View, rows: int) -> Table:
    table = Table(box=None, expand=True, pad_edge=False)
    for column in ("Workload", "Kind", "GPUs", "Phase", "Since", "Node"):
        table.add_column(column, no_wrap=True)
    is_full = rows < len(view.seen)
    # Messages that wrap take the lines of other workloads, and of the other panels.
    is_tight = rows < _LINES_PER_MESSAGE * len(view.seen)
    table.add_column("Message", ratio=1, no_wrap=is_tight, overflow="ellipsis" if is_tight else "fold")
    for seen in _choose_shown(view, rows):
        phase_name = seen.phase or Phase.PENDING
        phase = Text(phase_name, style=_PHASE_STYLE.get(phase_name, ""))
        since = f"{time.monotonic() - seen.since:.0f} s"
        cells: list[str | Text] = [
            seen.name,
            _SHORT.get(seen.kind, seen.kind),
            seen.gpus,
            phase,
            since,
            seen.node or "-",
            seen.message,
        ]
        table.add_row(*map(_make_cell, cells))
    if is_full:
        table.add_row(f"+{len(view.seen) - rows + 1} more", *[""] * 5, "kgwe local kubectl -- get gw,gpuw -A lists all")
    return table


def _choose_shown(view: View, rows: int) -> list[Seen]:
    """Workloads by name; where they are too many for the rows, those that have not ended first."""
    seen = [each for _, each in sorted(view.seen.items())]
    if len(seen) <= rows:
        return seen
    return sorted(seen, key=lambda each: _URGENCY.index(each.phase or Phase.PENDING))[: rows - 1]


def _build_fleet_table(view: View) -> Table:
    total: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    used: Counter[str] = Counter()
    model_of: dict[str, str] = {}
    for node in view.nodes.store.values():
        model = node.metadata.labels.get(podspec.GPU_PRODUCT_LABEL, "other")
        model_of[node.metadata.name] = model
        nodes[model] += 1
        total[model] += sum(a for r, a in podspec.read_allocatable(node).items() if amounts.is_gpu(r))
    for pod in view.pods.store.values():
        if pod.spec.nodeName in model_of and not podspec.is_terminal(pod):
            used[model_of[pod.spec.nodeName]] += sum(
                amount for resource, amount in podspec.sum_requests(pod.spec).items() if amounts.is_gpu(resource)
            )
    table = Table(box=None, expand=True, pad_edge=False)
    for column in ("GPU model", "Nodes", "GPUs and slices", "In use", ""):
        table.add_column(column, no_wrap=True)
    for model in sorted(total):
        share = used[model] / total[model] if total[model] else 0.0
        # A pool in use shows at least one filled cell.
        filled = max(round(_BAR * share), 1) if used[model] else 0
        bar = Text("█" * filled, style="green") + Text("░" * (_BAR - filled), style="dim")
        table.add_row(_make_cell(model), str(nodes[model]), str(total[model]), str(used[model]), bar)
    return table


def _build_findings(view: View) -> RenderableType:
    if view.findings is None:
        return Text("Pods are judged once there is a minute of usage.", style="dim")
    if not view.findings:
        return Text("No pod is known to waste GPUs.", style="dim")
    table = Table(box=None, expand=True, pad_edge=False)
    for column in ("Pod", "State", "Score"):
        table.add_column(column, no_wrap=True)
    table.add_column("Recommendation", ratio=1)
    for each in view.findings[:_MAX_FINDINGS]:
        score = f"{each.waste_score:.0f}" if each.HasField("waste_score") else "-"
        advice = each.recommendation
        saving = f", saves ${advice.saving_per_hour:.2f} per hour" if advice.HasField("saving_per_hour") else ""
        cells = (
            f"{each.namespace}/{each.pod}",
            each.state,
            score,
            f"{advice.target or ('keep it' if advice.action == 'None' else advice.action)}{saving}",
        )
        table.add_row(*map(_make_cell, cells))
    return table


def _build_costs(view: View) -> RenderableType:
    lines = [describe_costs(view.costs)]
    for budget in (view.budgets.store if view.budgets is not None else {}).values():
        spec, status = budget.spec, budget.status
        spent = float(status.currentSpend or 0)
        waiting = f"; {status.waitingWorkloads} waiting because of it" if status.waitingWorkloads else ""
        unit = " GPU-hours" if spec.unit == "GPUHours" else f" {spec.currency}"
        used = f"{budget.metadata.name}: {spent:,.2f} of {float(spec.limit):,.2f}{unit} {spec.period.lower()}"
        lines.append(escape_line(f"{used}, {spec.enforcementPolicy}{waiting}"))
    return Text("\n".join(lines))


def describe_costs(costs: dict[str, float] | None) -> str:
    """Return the dollars per hour in words."""
    if not costs:
        return "The cost engine has not counted yet."
    held = costs.get("allocated", 0.0) + costs.get("overhead", 0.0)
    return f"The fleet costs ${costs.get('fleet', 0.0):,.2f} per hour; pods hold ${held:,.2f} of it."


def _make_cell(content: str | Text) -> Text:
    """Return a cell that shows the content as it is: a plain string would be read as markup."""
    return content if isinstance(content, Text) else Text(escape_line(content))


def _format_hints(name: str, endpoints: Endpoints) -> Text:
    flag = "" if name == "kgwe" else f" --name {name}"
    asked = "" if endpoints.optimizer == DEFAULT_OPTIMIZER else f" --optimizer {endpoints.optimizer}"
    hints = (
        (f"kgwe local kubectl{flag} -- get gw,gpuw -A", "list the workloads"),
        (f"kgwe local kubectl{flag} -- apply -f my.yaml", "submit your own workload"),
        (f'export KUBECONFIG="$(kgwe local kubeconfig{flag} --path)"', "for these:"),
        ("kgwe explain too-large -n ml-team", "say why a workload waits"),
        ("kgwe scale history", "nodes bought and removed"),
        (f"kgwe predict -f examples/finetune.yaml{asked}", "predict a workload before it runs"),
        (f"kgwe optimize{asked}", "list the pods that waste GPUs"),
        (f"curl {endpoints.metrics}/metrics", "read the GPU metrics"),
        (f"kgwe console open --url {endpoints.console}", "sign a browser in to the console"),
        ("Ctrl-C", "stop everything"),
    )
    # A long command takes more, so that the others fit into 80 columns.
    width = max(len(command) for command, _ in hints if len(command) <= _HINT)
    return Text("\n".join(f"  {command:<{width}}   {what}" for command, what in hints), style="dim")
