"""`kgwe bench extender`: how long kube-scheduler waits for an answer.

    nodes, half taken → kube-scheduler asks about pods, all calls are taken down → KGWE is asked the same

    quiet     nothing else happens; in turns with a server that reads the same calls and decides nothing (echo), and
              with the same echo on uvicorn, where that is installed
    busy      a gang that does not fit is planned again and again, because its pods are replaced one by one
    landing   a gang arrives, is planned, and every one of its pods is given its seat; then once more, while the echo is
              asked in KGWE's place: what is left of the figure then is the machine's

A pair of calls, /filter and then /prioritize, is what a pod may cost; in practice most are answered with one node, and
kube-scheduler does not ask for scores at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import re
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.cluster import bed, clusters, load, scheduler
from kgwe.bench.cluster.bed import Bed
from kgwe.bench.cluster.load import Load
from kgwe.bench.cluster.measure.audit import SEATING, AuditTail
from kgwe.bench.cluster.measure.refusals import Verdict
from kgwe.bench.cluster.measure.timeline import percentile, work_name
from kgwe.bench.cluster.nodes import NodeSet
from kgwe.bench.cluster.scenarios import Gang, Phase, Piece, Scenario, Size
from kgwe.bench.extender import caller, capture, echo, echo_uvicorn
from kgwe.bench.loop import loop_factory
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.kube.translate import extender_wire as calls
from kgwe.local.cluster import components, extender
from kgwe.local.cluster.cluster import LocalCluster
from kgwe.local.host import processes
from kgwe.local.host.ports import LOOPBACK
from kgwe.local.toolchain import build
from kgwe.telemetry import http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kgwe.bench.extender.capture import Payload
    from kgwe.local.host.processes import ProcessRecord
    from kgwe.local.host.progress import Progress, Step

_SIZES = (1, 2, 4, 8)
_GPUS_PER_NODE = 8
# Pairs of calls before the other server has its turn.
_TURN = 50
# So soon after one pod of the gang the next one is replaced, while the planner is kept busy.
_NUDGE_S = 0.01
_ECHO = "kgwe-echo"
_UVICORN = "uvicorn-echo"
_PLANNING = re.compile(rb"^kgwe_dispatch_duration_seconds_sum ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    nodes: int = 1000
    # Pods kube-scheduler is made to ask about.
    pods: int = 400
    # Pairs of calls of each part.
    calls: int = 1000
    # Pods of the gang that keeps the planner busy; 0: only the quiet part.
    gang_size: int = 1000
    taken: float = 0.45
    # Nodes named in each call, in percent of those that kube-scheduler would take; 0: as many as it likes.
    percentage: int = 100
    # Whether both sides show certificates, as they do where kube-scheduler is on another machine.
    tls: bool = True
    seed: int = 1
    timeout_s: float = 600.0
    profile: Path | None = None

    def check(self) -> None:
        for name, least in {"nodes": 2, "pods": 5, "calls": 1, "gang_size": 0, "percentage": 0}.items():
            if getattr(self, name) < least:
                raise errors.Permanent(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least {least}")
        # Every pod asked about is held a place, and a gang has to land beside them.
        room = round(self.nodes * _GPUS_PER_NODE * (1 - self.taken)) - sum(piece.gpus for piece in _pieces(self.pods))
        if self.gang_size > room:
            raise errors.Permanent(f"--gang-size {self.gang_size}: beside the pods there is room for {max(0, room)}")


def run(options: Options, progress: Progress) -> report.Report:
    """Capture, then measure."""
    options.check()
    clusters.sweep()
    found = build.ensure_binaries(progress)
    machine = report.examine_machine(kubernetes=clusters.version(found))
    name = clusters.name_of("extender")
    port = scheduler.free_port(name)
    files = extender.client_files(LocalCluster(name).layout.certificates) if options.tls else None
    config = capture.configuration(extender.url(port, tls=options.tls), options.percentage, files)
    with (
        clusters.private(name, found, progress, scheduler_config=config) as cluster,
        progress.step(f"Asking about pods on {options.nodes} nodes") as step,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        metrics = runner.run(_measure(cluster, port, options, step))
    params = {**dataclasses.asdict(options), "profile": options.profile is not None}
    return report.Report("extender", params, metrics, machine)


async def _measure(cluster: LocalCluster, port: int, options: Options, step: Step) -> dict[str, Any]:
    async with KubeClient.connect(cluster.kubeconfig, field_manager="kgwe-bench") as client:
        work = Load(Scenario.FRAGMENTED, Phase.KGWE)
        ground = Bed(
            cluster,
            client,
            work,
            step,
            port=port,
            timeout_s=options.timeout_s,
            profile=options.profile,
            tls=options.tls,
        )
        size = Size(nodes=options.nodes, taken=options.taken)
        await ground.prepare(NodeSet(options.nodes, _GPUS_PER_NODE), size, options.seed)
        payloads = await _capture(ground, port, options)
        # Nobody else is to ask from here on.
        cluster.kill(components.SCHEDULER)
        await ground.start_kgwe()
        return await Asking(ground, port, payloads, options).run()


def _pieces(count: int) -> list[Piece]:
    return [Piece(work_name(index), _SIZES[index % len(_SIZES)]) for index in range(count)]


async def _capture(ground: Bed, port: int, options: Options) -> list[Payload]:
    """Let kube-scheduler ask about pods of every size."""
    recorder, count = capture.Recorder(), options.pods
    files = extender.server_files(ground.cluster.layout.certificates)
    tls = http.ReloadingContext(files) if options.tls else None
    found: list[Payload] = []

    async def enough() -> bool:
        found[:] = recorder.payloads()
        ground.step.update(f"kube-scheduler has asked about {len(found)} of {count} pods")
        return len(found) >= count

    async with http.serving(recorder, http.Address(LOOPBACK, port), tls=tls, limits=http.Limits(body=calls.LARGEST)):
        await load.submit(ground.client, Load(Scenario.FILL, Phase.KGWE), _pieces(count), bed.NAMESPACE, {})
        await ground.until("kube-scheduler to ask about every pod", enough)
    return found


@dataclass(frozen=True, slots=True)
class Server:
    """A server under measurement."""

    port: int
    process: ProcessRecord | None

    def cpu_s(self) -> float:
        used = processes.usage(self.process) if self.process else None
        return used.cpu_s if used else 0.0


class Asking:
    """The three parts, on one cluster with KGWE beside it."""

    def __init__(self, ground: Bed, port: int, payloads: Sequence[Payload], options: Options) -> None:
        self._bed = ground
        self._port = port
        self._options = options
        self._certificates = ground.cluster.layout.certificates
        self._tls = extender.client_context(self._certificates) if options.tls else None
        # The first fifth warms up; about the others nobody has asked KGWE before.
        self._warm, self._payloads = payloads[: len(payloads) // 5], payloads[len(payloads) // 5 :]

    async def run(self) -> dict[str, Any]:
        ground = self._bed
        async with contextlib.AsyncExitStack() as stack:
            servers = {"echo_": await stack.enter_async_context(self._echo(_ECHO, echo.__name__))}
            if echo_uvicorn.is_installed():
                other = self._echo(_UVICORN, echo_uvicorn.__name__)
                servers["uvicorn_"] = await stack.enter_async_context(other)
            metrics = await self._quiet(servers)
            if self._options.gang_size:
                metrics |= await self._busy()
                metrics |= await self._landing("landing", self._port)
                await ground.clear(bed.WARM_UP_NAMESPACE)
                again = await self._landing("echo_landing", servers["echo_"].port)
                metrics |= {key: value for key, value in again.items() if key.endswith("_ms")}
        payload = self._payloads[0]
        metrics["payload_bytes"] = [len(payload.filter), len(payload.prioritize)]
        if ground.kgwe is not None:
            metrics["rss_mb"] = scheduler.memory_mb(ground.kgwe.pid, "VmRSS")
            metrics["rss_peak_mb"] = ground.rss_peak_mb()
        return metrics

    # --- parts ------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _echo(self, name: str, module: str) -> AsyncIterator[Server]:
        """Run a server that decides nothing beside KGWE."""
        ground = self._bed
        port = scheduler.free_port(ground.cluster.name)
        argv = [sys.executable, "-m", module, str(port)]
        argv += [str(self._certificates.directory)] if self._tls else []
        process = ground.cluster.start_sidecar(name, argv)
        try:
            await ground.until(f"{name} to listen", lambda: scheduler.listens(port))
            yield Server(port, process)
        finally:
            processes.terminate([process], grace_s=5.0)

    async def _quiet(self, echoes: Mapping[str, Server]) -> dict[str, Any]:
        """Ask KGWE and the echoes in turns; the keys of `echoes` are the prefixes of their metrics."""
        ground = self._bed
        servers = {"": Server(self._port, ground.kgwe), **echoes}
        spent = {prefix: caller.Spent() for prefix in servers}
        for server in servers.values():
            await self._call(server.port, self._warm, caller.Spent(), range(len(self._warm)))
        cpu_s = {prefix: -server.cpu_s() for prefix, server in servers.items()}
        for first in range(0, self._options.calls, _TURN):
            ground.step.update(f"quiet: {first} of {self._options.calls}")
            turns = range(first, min(first + _TURN, self._options.calls))
            for prefix, server in servers.items():
                await self._call(server.port, self._payloads, spent[prefix], turns)
        found: dict[str, Any] = {}
        for prefix, server in servers.items():
            used_s = cpu_s[prefix] + server.cpu_s()
            found |= _numbers(prefix, spent[prefix])
            found[f"{prefix}cpu_ms_per_pod"] = round(used_s * 1e3 / self._options.calls, 3)
        mine = spent[""]
        return found | {
            "filter_p50_ms": _rounded(mine.filter_ms, 50),
            "filter_p99_ms": _rounded(mine.filter_ms, 99),
            "placed_share": round(mine.placed / self._options.calls, 3),
        }

    async def _busy(self) -> dict[str, Any]:
        """A gang that does not fit is planned again whenever one of its pods was replaced: most of the time."""
        ground = self._bed
        whole = sum(1 for free in ground.free.values() if free == _GPUS_PER_NODE)
        gang = Gang("busy", max(min(self._options.gang_size, self._options.nodes), whole + 1), preferred="leaf")
        spent = caller.Spent()

        async def replace() -> None:
            for number in itertools.count():
                ground.step.update(f"busy: {len(spent.filter_ms)} of {self._options.calls}")
                await ground.client.delete(resources.POD, work_name(number), bed.WARM_UP_NAMESPACE, grace_s=0)
                body = ground.load.body(Piece(work_name(gang.pods + number), _GPUS_PER_NODE, gang))
                await ground.client.create(resources.POD, body, bed.WARM_UP_NAMESPACE)
                await asyncio.sleep(_NUDGE_S)

        async with Verdict(ground.client, bed.WARM_UP_NAMESPACE) as verdict:
            ground.step.update(f"{gang.pods} pods of a gang come")
            await self._submit(gang, gpus=_GPUS_PER_NODE)
            await ground.until("KGWE to say that the gang does not fit", verdict.spoken)
        began, planning_s = time.monotonic(), await self._planning_s()
        async with _meanwhile(replace()):
            await self._call(self._port, self._payloads, spent, range(self._options.calls))
            share = (await self._planning_s() - planning_s) / (time.monotonic() - began)
        await ground.clear(bed.WARM_UP_NAMESPACE)
        found = {
            "busy_planning_share": round(share, 3),
            "busy_gang_pods": gang.pods,
            "busy_calls": len(spent.filter_ms),
        }
        return {**_numbers("busy_", spent), **found}

    async def _landing(self, name: str, port: int) -> dict[str, Any]:
        """A gang that fits arrives and is seated, while the server on `port` is asked."""
        ground = self._bed
        gang = Gang(name.replace("_", "-"), self._options.gang_size, preferred="leaf")
        seats = AuditTail(ground.cluster.audit_log, bed.WARM_UP_NAMESPACE, *SEATING)
        seats.read()
        spent, seated = caller.Spent(), 0

        async def all_seated() -> bool:
            nonlocal seated
            seated += sum(entry.succeeded and entry.user.username == scheduler.USER for entry in seats.read())
            ground.step.update(f"{name}: {seated} of {gang.pods} seated, {len(spent.filter_ms)} calls")
            return seated >= gang.pods

        stop = threading.Event()
        turns = itertools.takewhile(lambda _: not stop.is_set(), itertools.count())
        async with _meanwhile(self._call(port, self._payloads, spent, turns), stop.set):
            began, planning_s = time.monotonic(), await self._planning_s()
            await self._submit(gang, gpus=1)
            await ground.until("every pod of the gang to have a seat", all_seated)
            landed_s, planning_s = time.monotonic() - began, await self._planning_s() - planning_s
        found = {f"{name}_s": round(landed_s, 2), f"{name}_planning_s": round(planning_s, 3)}
        return {**_numbers(f"{name}_", spent), **found}

    # --- helpers ----------------------------------------------------------------------------------------

    async def _submit(self, gang: Gang, gpus: int) -> None:
        pieces = [Piece(work_name(index), gpus, gang) for index in range(gang.pods)]
        await load.submit(self._bed.client, self._bed.load, pieces, bed.WARM_UP_NAMESPACE, {})

    async def _call(self, port: int, payloads: Sequence[Payload], spent: caller.Spent, turns: Any) -> None:
        """In a thread: what nudges or submits meanwhile is not to be waited for."""
        await asyncio.to_thread(caller.call, port, payloads, spent, turns, self._tls)

    async def _planning_s(self) -> float:
        """Seconds the planner has taken in all, by its own count."""
        reader, writer = await asyncio.open_connection(LOOPBACK, self._port, limit=1 << 22, ssl=self._tls)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
        text = await reader.read(-1)
        writer.close()
        found = _PLANNING.search(text)
        return float(found[1]) if found else 0.0


@contextlib.asynccontextmanager
async def _meanwhile(work: Any, stop: Callable[[], None] | None = None) -> AsyncIterator[None]:
    """Run `work` while the context is open; it is told to stop, or else cancelled, afterwards."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        if stop is None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        else:
            stop()
            await task


def _numbers(prefix: str, spent: caller.Spent) -> dict[str, float]:
    both = spent.both_ms()
    found: Iterator[tuple[str, float]] = ((f"{prefix}p{each}_ms", _rounded(both, each)) for each in (50, 99))
    return {**dict(found), f"{prefix}max_ms": round(max(both), 2)}


def _rounded(milliseconds: Sequence[float], percent: int) -> float:
    return round(percentile(sorted(milliseconds), percent), 2)
