"""`kgwe demo`: the whole of KGWE on a local cluster, with sample workloads. `make run` calls it."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.live import Live

from kgwe import errors, terminal
from kgwe.cli.processes import console_link
from kgwe.kube.client.client import KubeClient
from kgwe.local.demo import demo, screen
from kgwe.local.host import progress
from kgwe.telemetry import logs

if TYPE_CHECKING:
    from kgwe.local.cluster.cluster import LocalCluster

ONCE = "KGWE_RUN_ONCE"
# The demo goes on without a link if the console does not answer in this time.
_CONSOLE_S = 60.0

app = App(
    name="demo",
    help="Start a local cluster with a simulated GPU fleet, install KGWE and run sample workloads.",
    help_format="plaintext",
    help_epilogue=f"""Examples:
  kgwe demo                            run until Ctrl-C
  kgwe demo --fleet dgx-h100 --nodes 8
  {ONCE}=1 kgwe demo             exit 0 once all samples reach their expected phase""",
)


@app.default
def run(
    *,
    name: Annotated[str, Parameter(name=["--name", "-n"])] = "kgwe",
    fleet: str = "mixed",
    nodes: int = 64,
) -> int:
    """Run the demo until Ctrl-C.

    Parameters
    ----------
    name
        Name of the local cluster. A cluster that already runs is used and left running.
    fleet
        Fleet model: a name that `kgwe local fleet models` lists, or a file.
    nodes
        Number of simulated nodes.
    """
    logs.configure(level="warning")
    teller = progress.for_stream()
    started = time.monotonic()
    try:
        with demo.running_cluster(name, teller) as cluster:
            asyncio.run(_Demo(cluster, teller, started).run(fleet, nodes))
    except KeyboardInterrupt:
        # Ctrl-C is the normal end; the context manager has stopped the cluster.
        return 0
    return 0


class _Demo:
    """One run of the demo, from the start of the cluster to the last sample."""

    def __init__(self, cluster: LocalCluster, teller: progress.Progress, started: float) -> None:
        self._cluster = cluster
        self._teller = teller
        self._started = started
        self._once = os.environ.get(ONCE, "") not in ("", "0")

    async def run(self, fleet: str, nodes: int) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with KubeClient.connect(self._cluster.kubeconfig, field_manager="kgwe-demo") as client:
            work = asyncio.create_task(self._show(client, fleet, nodes))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
            for task in (work, stopping):
                task.cancel()
            outcome, _ = await asyncio.gather(work, stopping, return_exceptions=True)
            if isinstance(outcome, BaseExceptionGroup):
                raise outcome.exceptions[0]
            if isinstance(outcome, Exception):
                raise outcome

    async def _show(self, client: KubeClient, fleet: str, nodes: int) -> None:
        endpoints = await demo.prepare(self._cluster, client, fleet, nodes, self._teller)
        endpoints = await self._add_link(endpoints)
        self._teller.note(f"GPU metrics: {endpoints.metrics}, optimizer: {endpoints.optimizer}")
        self._teller.note(f"Console: {endpoints.sign_in or endpoints.console}")
        on_screen = sys.stdout.isatty()
        on_phase = demo.ignore_phase if on_screen else functools.partial(_print_phase, self._started)
        async with demo.watch_samples(client, on_phase) as view, asyncio.TaskGroup() as group:
            tasks = [group.create_task(demo.watch_processes(self._cluster))]
            if on_screen:
                tasks.append(group.create_task(demo.watch_findings(view, endpoints.optimizer)))
                tasks.append(group.create_task(demo.watch_costs(view, endpoints.costs)))
                tasks.append(group.create_task(_show_screen(view, self._cluster.name, endpoints, self._started)))
            await demo.submit_samples(client)
            if self._once:
                await demo.wait_expected(view)
                costs = await demo.wait_costs(endpoints.costs)
                for task in tasks:
                    task.cancel()
        if self._once:
            elapsed_s = time.monotonic() - self._started
            terminal.write(f"{screen.describe_costs(costs)}\n")
            terminal.write(f"All {len(demo.SAMPLES)} samples reached their expected phase in {elapsed_s:.1f} s.\n")

    async def _add_link(self, endpoints: demo.Endpoints) -> demo.Endpoints:
        """Add a link that signs a browser in to the console, once the console answers."""
        until = time.monotonic() + _CONSOLE_S
        while True:
            try:
                link = await console_link.request_link(endpoints.console, self._cluster.kubeconfig)
            except errors.KgweError as exc:
                if time.monotonic() > until:
                    self._teller.note(f"The console does not answer: {exc}")
                    return endpoints
                await asyncio.sleep(0.2)
            else:
                return dataclasses.replace(endpoints, sign_in=link.url)


async def _show_screen(view: demo.View, name: str, endpoints: demo.Endpoints, started: float) -> None:
    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            height = console.size.height
            shown = screen.render(view, name=name, endpoints=endpoints, started=started, height=height)
            live.update(shown, refresh=True)
            await asyncio.sleep(0.5)


def _print_phase(started: float, seen: demo.Seen) -> None:
    where = f" on {seen.node}" if seen.node else ""
    text = f"{time.monotonic() - started:7.1f} s  {seen.kind}/{seen.name}: {seen.phase}{where}  {seen.message}"
    terminal.write(f"{text}\n")
    sys.stdout.flush()
