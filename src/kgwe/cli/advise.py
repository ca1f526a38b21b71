"""`kgwe advise`: compares the placements of the current scheduler with those KGWE would choose."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter

from kgwe import terminal
from kgwe.apps.advisor import judge, main
from kgwe.cluster import offline
from kgwe.kube.client.client import KubeClient
from kgwe.model.units.phrasing import format_count
from kgwe.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.apps.advisor.judge import Judged, Offender, Report, Side, Totals

app = App(
    name="advise",
    help="""Compare the placements of the current scheduler with those KGWE would choose.

The command is read-only: its client refuses to write, and deploy/advisor.yaml has the permissions it needs. For each
placed GPU pod or gang it plans where KGWE would have put it if the rest of the cluster were the same. It reports the
difference: bandwidth lost (GB/s), leaves spanned, NVLink islands broken, and idle GPUs that no request can use.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe advise                        compare all running placements, once
  kgwe advise --json | jq .totals
  kgwe advise --watch                compare each new placement; metrics on :8080""",
)

Kubeconfig = Annotated[Path | None, Parameter(env_var="KUBECONFIG")]


@app.default
def advise(
    *,
    watch: bool = False,
    json: bool = False,
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"])] = "",
    top: int = 10,
    metrics_bind_address: str = ":8080",
    log_level: str = "info",
    kubeconfig: Kubeconfig = None,
) -> int:
    """Compare placements.

    Parameters
    ----------
    watch
        Keep running, compare each new placement, and serve kgwe_advisor_* metrics.
    json
        Print one JSON object; with --watch, print one JSON line per placement.
    namespace
        Only this namespace. Default: all namespaces.
    top
        Number of worst placements to show.
    metrics_bind_address
        With --watch: address for /metrics, /healthz and /readyz; port 0 picks a free port.
    log_level
        With --watch: log level (debug, info, warning or error).
    kubeconfig
        Path of the kubeconfig. Default inside a cluster: the service account.
    """
    logs.configure(level=log_level if watch else "error")
    if watch:
        asyncio.run(_watch(kubeconfig, metrics_bind_address, as_json=json))
        return 0
    told = asyncio.run(_advise_once(kubeconfig, namespace, top))
    if json:
        terminal.write(msgspec.json.format(msgspec.json.encode(told)).decode() + "\n")
    else:
        terminal.write("\n".join(_format_report(told)) + "\n")
    return 0


async def _advise_once(kubeconfig: Path | None, namespace: str, top: int) -> Report:
    async with KubeClient.connect(kubeconfig, field_manager="kgwe-advisor") as client:
        return judge.judge_all(await offline.read(client), namespace, top)


async def _watch(kubeconfig: Path | None, address: str, *, as_json: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with KubeClient.connect(kubeconfig, field_manager="kgwe-advisor") as client:
        await main.Advisor(client, on_judged=_print_line if as_json else main.log_placement).run(stop, address)


def _print_line(judged: Judged) -> None:
    if judged.regret is not None:
        terminal.write(msgspec.json.encode(judge.describe_offender(judged)).decode() + "\n")
        sys.stdout.flush()


# --- text ------------------------------------------------------------------------------------------------


def _format_report(told: Report) -> Iterator[str]:
    yield "Running placements compared with those KGWE would choose, with the rest of the cluster unchanged:"
    for name, totals in told.by_scheduler.items():
        yield ""
        yield f"placed by {name}: {totals.placements} ({format_count(totals.gangs, 'gang')})"
        yield from (f"  {line}" for line in _format_totals(totals))
    if not told.by_scheduler:
        yield "  none: no GPU pod is assigned to a node"
    if told.partial:
        yield ""
        yield f"partially placed gangs: {len(told.partial)}"
        yield from (f"  {line}" for line in told.partial)
    if told.worst:
        yield ""
        yield "worst placements:"
        yield from (f"  {line}" for each in told.worst for line in _format_offender(each))
    yield from (f"could not read: {warning}" for warning in told.warnings)


def _format_totals(totals: Totals) -> Iterator[str]:
    if not totals.better_possible:
        yield "no better placement exists"
    else:
        yield f"{totals.better_possible} could be placed better"
    if totals.possible_gb_per_s:
        part = totals.lost_gb_per_s / totals.possible_gb_per_s
        yield f"{totals.lost_gb_per_s:,.1f} of {totals.possible_gb_per_s:,.1f} GB/s lost ({part:.0%})"
    if totals.leaves:
        yield f"gangs span {format_count(totals.leaves, 'leaf', 'leaves')}; {totals.fewest_leaves} would be enough"
    if totals.islands_broken:
        yield f"{format_count(totals.islands_broken, 'NVLink island')} split that could have stayed whole"
    if totals.fragmented_gpus:
        yield f"{totals.fragmented_gpus:g} idle GPUs that no request can use"
    if totals.not_by_kgwe:
        yield f"{totals.not_by_kgwe} that KGWE would refuse: the node does not meet all requirements of the pod"


def _format_offender(each: Offender) -> Iterator[str]:
    yield f"{each.name} ({each.gpus:g} GPUs): {_format_side(each.actual)}; could be {_format_side(each.best)}"
    names = ", ".join(each.would_go[:4]) + (" …" if len(each.would_go) > 4 else "")  # noqa: PLR2004 - fits a line
    yield f"    on {names}"


def _format_side(side: Side) -> str:
    rate = "no ring" if side.gb_per_s is None else f"{side.gb_per_s:g} GB/s" if side.gb_per_s else "unknown GB/s"
    leaves = f", {side.leaves} leaves" if side.leaves > 1 else ""
    broken = f", {format_count(side.islands_broken, 'NVLink island')} split" if side.islands_broken else ""
    return f"{rate} on {format_count(side.nodes, 'node')}{leaves}{broken}"
