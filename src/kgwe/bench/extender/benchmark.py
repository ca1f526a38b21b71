"""`kgwe bench extender`: the response time of the extender, as kube-scheduler sees it.

    half-full nodes → record kube-scheduler's calls about pods → replay the calls to KGWE

    quiet     KGWE is otherwise idle. Alternates with a server that reads the same calls and decides nothing (echo),
             and with the same echo on uvicorn, if installed
    busy      a gang that does not fit is planned repeatedly, because its pods are replaced one by one
    landing   a gang arrives, is planned, and each of its pods gets its seat. Repeated with calls to the echo instead
             of KGWE, which measures the effect of the machine

A pair of calls, /filter and then /prioritize, is the maximum per pod. In practice most /filter responses name one
node, and kube-scheduler then skips /prioritize.
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
# Pairs of calls before the next server has its turn.
_TURN = 50
# Seconds between two pod replacements while the planner is kept busy.
_NUDGE_S = 0.01
_ECHO = "kgwe-echo"
_UVICORN = "uvicorn-echo"
_PLANNING = re.compile(rb"^kgwe_dispatch_duration_seconds_sum ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    nodes: int = 1000
    # Pods whose calls are recorded.
    pods: int = 400
    # Pairs of calls per measurement.
    calls: int = 1000
    # Pods of the gang that keeps the planner busy; 0 measures only the idle process.
    gang_size: int = 1000
    taken: float = 0.45
    # Nodes per call, as percentageOfNodesToScore; 0 lets kube-scheduler choose.
    percentage: int = 100
    # Use mutual TLS, as when kube-scheduler runs on another machine.
    tls: bool = True
    seed: int = 1
    timeout_s: float = 600.0
    profile: Path | None = None

    def check(self) -> None:
        for name, least in {"nodes": 2, "pods": 5, "calls": 1, "gang_size": 0, "percentage": 0}.items():
            if getattr(self, name) < least:
                raise errors.Permanent(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least {least}")
        # Each recorded pod reserves GPUs, and the gang needs room besides them.
        room = round(self.nodes * _GPUS_PER_NODE * (1 - self.taken)) - sum(
            piece.gpus for piece in _build_pieces(self.pods)
        )
        if self.gang_size > room:
            raise errors.Permanent(f"--gang-size {self.gang_size}: besides the pods there is room for {max(0, room)}")


def run(options: Options, progress: Progress) -> report.Report:
    """Record the calls, then measure."""
    options.check()
    clusters.sweep()
    found = build.ensure_binaries(progress)
    machine = report.examine_machine(kubernetes=clusters.read_version(found))
    name = clusters.name_of("extender")
    port = scheduler.free_port(name)
    files = extender.client_files(LocalCluster(name).layout.certificates) if options.tls else None
    config = capture.build_configuration(extender.url(port, tls=options.tls), options.percentage, files)
    with (
        clusters.private_cluster(name, found, progress, scheduler_config=config) as cluster,
        progress.step(f"Replaying calls about pods on {options.nodes} nodes") as step,
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
        payloads = await record_calls(ground, port, options.pods, is_tls=options.tls)
        # Stop kube-scheduler, so that it sends no further calls.
        cluster.kill(components.SCHEDULER)
        await ground.start_kgwe()
        return await Asking(ground, port, payloads, options).run()


def _build_pieces(count: int) -> list[Piece]:
    return [Piece(work_name(index), _SIZES[index % len(_SIZES)]) for index in range(count)]


async def record_calls(ground: Bed, port: int, count: int, *, is_tls: bool) -> list[Payload]:
    """Record kube-scheduler's calls about so many pods, of each size."""
    recorder = capture.Recorder()
    files = extender.server_files(ground.cluster.layout.certificates)
    tls = http.ReloadingContext(files) if is_tls else None
    found: list[Payload] = []

    async def has_enough() -> bool:
        found[:] = recorder.payloads()
        ground.step.update(f"recorded the calls about {len(found)} of {count} pods")
        return len(found) >= count

    async with http.serving(recorder, http.Address(LOOPBACK, port), tls=tls, limits=http.Limits(body=calls.LARGEST)):
        await load.submit(ground.client, Load(Scenario.FILL, Phase.KGWE), _build_pieces(count), bed.NAMESPACE, {})
        await ground.wait_until("kube-scheduler to call about each pod", has_enough)
    return found


@dataclass(frozen=True, slots=True)
class Server:
    """A server under measurement."""

    port: int
    process: ProcessRecord | None

    def cpu_s(self) -> float:
        used = processes.read_usage(self.process) if self.process else None
        return used.cpu_s if used else 0.0


class Asking:
    """The three measurements, on one cluster with KGWE."""

    def __init__(self, ground: Bed, port: int, payloads: Sequence[Payload], options: Options) -> None:
        self._bed = ground
        self._port = port
        self._options = options
        self._certificates = ground.cluster.layout.certificates
        self._tls = extender.client_context(self._certificates) if options.tls else None
        # The first fifth warms up. KGWE has seen no earlier call about the other pods.
        self._warm, self._payloads = payloads[: len(payloads) // 5], payloads[len(payloads) // 5 :]

    async def run(self) -> dict[str, Any]:
        ground = self._bed
        async with contextlib.AsyncExitStack() as stack:
            servers = {"echo_": await stack.enter_async_context(self._run_echo(_ECHO, echo.__name__))}
            if echo_uvicorn.is_installed():
                other = self._run_echo(_UVICORN, echo_uvicorn.__name__)
                servers["uvicorn_"] = await stack.enter_async_context(other)
            metrics = await self._measure_idle(servers)
            if self._options.gang_size:
                metrics |= await self._measure_busy()
                metrics |= await self._measure_landing("landing", self._port)
                await ground.clear(bed.WARM_UP_NAMESPACE)
                again = await self._measure_landing("echo_landing", servers["echo_"].port)
                metrics |= {key: value for key, value in again.items() if key.endswith("_ms")}
        payload = self._payloads[0]
        metrics["payload_bytes"] = [len(payload.filter), len(payload.prioritize)]
        if ground.kgwe is not None:
            metrics["rss_mb"] = scheduler.memory_mb(ground.kgwe.pid, "VmRSS")
            metrics["rss_peak_mb"] = ground.rss_peak_mb()
        return metrics

    # --- parts ------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _run_echo(self, name: str, module: str) -> AsyncIterator[Server]:
        """Run a server that decides nothing, next to KGWE."""
        ground = self._bed
        port = scheduler.free_port(ground.cluster.name)
        argv = [sys.executable, "-m", module, str(port)]
        argv += [str(self._certificates.directory)] if self._tls else []
        process = ground.cluster.start_sidecar(name, argv)
        try:
            await ground.wait_until(f"{name} to listen", lambda: scheduler.is_listening(port))
            yield Server(port, process)
        finally:
            processes.terminate([process], grace_s=5.0)

    async def _measure_idle(self, echoes: Mapping[str, Server]) -> dict[str, Any]:
        """Call KGWE and the echo servers alternately. The keys of `echoes` are the prefixes of their metrics."""
        ground = self._bed
        servers = {"": Server(self._port, ground.kgwe), **echoes}
        spent = {prefix: caller.Spent() for prefix in servers}
        for server in servers.values():
            await self._send_calls(server.port, self._warm, caller.Spent(), range(len(self._warm)))
        cpu_s = {prefix: -server.cpu_s() for prefix, server in servers.items()}
        for first in range(0, self._options.calls, _TURN):
            ground.step.update(f"quiet: {first} of {self._options.calls}")
            turns = range(first, min(first + _TURN, self._options.calls))
            for prefix, server in servers.items():
                await self._send_calls(server.port, self._payloads, spent[prefix], turns)
        found: dict[str, Any] = {}
        for prefix, server in servers.items():
            used_s = cpu_s[prefix] + server.cpu_s()
            found |= _to_metrics(prefix, spent[prefix])
            found[f"{prefix}cpu_ms_per_pod"] = round(used_s * 1e3 / self._options.calls, 3)
        mine = spent[""]
        return found | {
            "filter_p50_ms": _round_values(mine.filter_ms, 50),
            "filter_p99_ms": _round_values(mine.filter_ms, 99),
            "placed_share": round(mine.placed / self._options.calls, 3),
        }

    async def _measure_busy(self) -> dict[str, Any]:
        """Measure while a gang that does not fit is planned at each replacement of one of its pods."""
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
            ground.step.update(f"creating {gang.pods} pods of a gang")
            await self._submit(gang, gpus=_GPUS_PER_NODE)
            await ground.wait_until("KGWE to refuse the gang", verdict.is_known)
        began, planning_s = time.monotonic(), await self._read_planning_s()
        async with _run_meanwhile(replace()):
            await self._send_calls(self._port, self._payloads, spent, range(self._options.calls))
            share = (await self._read_planning_s() - planning_s) / (time.monotonic() - began)
        await ground.clear(bed.WARM_UP_NAMESPACE)
        found = {
            "busy_planning_share": round(share, 3),
            "busy_gang_pods": gang.pods,
            "busy_calls": len(spent.filter_ms),
        }
        return {**_to_metrics("busy_", spent), **found}

    async def _measure_landing(self, name: str, port: int) -> dict[str, Any]:
        """Measure the server on `port` while a gang that fits arrives and gets its seats."""
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
        async with _run_meanwhile(self._send_calls(port, self._payloads, spent, turns), stop.set):
            began, planning_s = time.monotonic(), await self._read_planning_s()
            await self._submit(gang, gpus=1)
            await ground.wait_until("each pod of the gang to have a seat", all_seated)
            landed_s, planning_s = time.monotonic() - began, await self._read_planning_s() - planning_s
        found = {f"{name}_s": round(landed_s, 2), f"{name}_read_planning_s": round(planning_s, 3)}
        return {**_to_metrics(f"{name}_", spent), **found}

    # --- helpers ----------------------------------------------------------------------------------------

    async def _submit(self, gang: Gang, gpus: int) -> None:
        pieces = [Piece(work_name(index), gpus, gang) for index in range(gang.pods)]
        await load.submit(self._bed.client, self._bed.load, pieces, bed.WARM_UP_NAMESPACE, {})

    async def _send_calls(self, port: int, payloads: Sequence[Payload], spent: caller.Spent, turns: Any) -> None:
        """Send the calls in a thread, so that pod changes continue meanwhile."""
        await asyncio.to_thread(caller.call, port, payloads, spent, turns, self._tls)

    async def _read_planning_s(self) -> float:
        """Return the total seconds of planning, from KGWE's metrics."""
        reader, writer = await asyncio.open_connection(LOOPBACK, self._port, limit=1 << 22, ssl=self._tls)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
        text = await reader.read(-1)
        writer.close()
        found = _PLANNING.search(text)
        return float(found[1]) if found else 0.0


@contextlib.asynccontextmanager
async def _run_meanwhile(work: Any, stop: Callable[[], None] | None = None) -> AsyncIterator[None]:
    """Run `work` while the context is open; afterwards ask it to stop, and cancel it if it does not."""
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


def _to_metrics(prefix: str, spent: caller.Spent) -> dict[str, float]:
    both = spent.both_ms()
    found: Iterator[tuple[str, float]] = ((f"{prefix}p{each}_ms", _round_values(both, each)) for each in (50, 99))
    return {**dict(found), f"{prefix}max_ms": round(max(both), 2)}


def _round_values(milliseconds: Sequence[float], percent: int) -> float:
    return round(percentile(sorted(milliseconds), percent), 2)
