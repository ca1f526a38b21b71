"""`kgwe advise`: what the present scheduler's placements cost, beside what KGWE would have done."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter

from kgwe.apps.advisor import judge, main
from kgwe.cluster import offline
from kgwe.kube.client.client import KubeClient
from kgwe.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.apps.advisor.judge import Judged, Offender, Report, Side, Totals

app = App(
    name="advise",
    help="""What the present scheduler's placements cost, beside what KGWE would have done with each.

Changes nothing: reading is all it needs (deploy/advisor.yaml has the rights), and its client refuses to write. For
every GPU pod or gang that has its places it plans, with that work removed, where KGWE would have put it, and tells the
difference: GB/s lost, leaves spanned, islands of cards broken, GPUs made useless to what is asked for.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe advise                        what runs now, with all else as it is
  kgwe advise --json | jq .totals
  kgwe advise --watch                every placement as it is made; metrics on :8080""",
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
    """Judge placements.

    Parameters
    ----------
    watch
        Stay, judge every placement as it is made, and serve kgwe_advisor_* metrics.
    json
        Print one JSON object; with --watch one line for every placement.
    namespace
        Only work of this namespace; all when left out.
    top
        How many of the worst placements are shown.
    metrics_bind_address
        With --watch: where /metrics, /healthz and /readyz are served; port 0 takes a free one.
    log_level
        With --watch: debug, info, warning or error.
    kubeconfig
        How to reach the API server; inside a cluster the service account is used.
    """
    logs.configure(level=log_level if watch else "error")
    if watch:
        asyncio.run(_watch(kubeconfig, metrics_bind_address, as_json=json))
        return 0
    told = asyncio.run(_look(kubeconfig, namespace, top))
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told)).decode() + "\n")
    else:
        sys.stdout.write("\n".join(_words(told)) + "\n")
    return 0


async def _look(kubeconfig: Path | None, namespace: str, top: int) -> Report:
    async with KubeClient.connect(kubeconfig, field_manager="kgwe-advisor") as client:
        return judge.look(await offline.read(client), namespace, top)


async def _watch(kubeconfig: Path | None, address: str, *, as_json: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with KubeClient.connect(kubeconfig, field_manager="kgwe-advisor") as client:
        await main.Advisor(client, on_judged=_print_line if as_json else main.tell).run(stop, address)


def _print_line(judged: Judged) -> None:
    if judged.regret is not None:
        sys.stdout.write(msgspec.json.encode(judge.offender(judged)).decode() + "\n")
        sys.stdout.flush()


# --- words -----------------------------------------------------------------------------------------------


def _words(told: Report) -> Iterator[str]:
    yield "What runs, beside what KGWE would have done with each, all else being as it is:"
    for name, totals in told.by_scheduler.items():
        yield ""
        yield f"placed by {name}: {totals.placements} ({totals.gangs} gangs)"
        yield from (f"  {line}" for line in _sums(totals))
    if not told.by_scheduler:
        yield "  nothing: no GPU pod has a node"
    if told.partial:
        yield ""
        yield f"gangs that hold places without being whole: {len(told.partial)}"
        yield from (f"  {line}" for line in told.partial)
    if told.worst:
        yield ""
        yield "most to gain:"
        yield from (f"  {line}" for each in told.worst for line in _offender(each))
    yield from (f"not read: {warning}" for warning in told.warnings)


def _sums(totals: Totals) -> Iterator[str]:
    if not totals.better_possible:
        yield "none could have been placed better"
    else:
        yield f"{totals.better_possible} could have been placed better"
    if totals.possible_gb_per_s:
        part = totals.lost_gb_per_s / totals.possible_gb_per_s
        yield f"{totals.lost_gb_per_s:,.1f} of {totals.possible_gb_per_s:,.1f} GB/s lost ({part:.0%})"
    if totals.leaves:
        yield f"gangs span {totals.leaves} leaves where {totals.fewest_leaves} would do"
    if totals.islands_broken:
        yield f"{totals.islands_broken} islands of cards broken that could have stayed whole"
    if totals.fragmented_gpus:
        yield f"{totals.fragmented_gpus:g} idle GPUs made useless to what is asked for"
    if totals.not_by_kgwe:
        yield f"{totals.not_by_kgwe} KGWE would not have placed: something they ask for is not met where they are"


def _offender(each: Offender) -> Iterator[str]:
    yield f"{each.name} ({each.gpus:g} GPUs): {_side(each.actual)}; could be {_side(each.best)}"
    names = ", ".join(each.would_go[:4]) + (" …" if len(each.would_go) > 4 else "")  # noqa: PLR2004 - fits a line
    yield f"    on {names}"


def _side(side: Side) -> str:
    rate = "no ring" if side.gb_per_s is None else f"{side.gb_per_s:g} GB/s" if side.gb_per_s else "unknown GB/s"
    leaves = f", {side.leaves} leaves" if side.leaves > 1 else ""
    broken = f", {side.islands_broken} islands broken" if side.islands_broken else ""
    return f"{rate} on {side.nodes} node{'' if side.nodes == 1 else 's'}{leaves}{broken}"
