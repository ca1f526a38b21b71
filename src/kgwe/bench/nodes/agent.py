"""`kgwe bench agent`: the cost of the agent on an idle node.

A real agent reads simulated hardware through the C library with the settings of the DaemonSet: readings every 5 s,
the machine every 30 s. It publishes to a real API server and is scraped every 15 s. CPU time covers the process with
all threads; the C library has its part of it, as a driver has. Two nodes are measured: eight whole GPUs, and eight
GPUs with seven slices each.

Bytes are those of the writes to the GPUNode. On an idle node these are heartbeats only. Their size comes from a
second, short run with frequent heartbeats.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.apps.agent.settings import Settings
from kgwe.bench import report
from kgwe.bench.cluster import clusters, scheduler
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.local.fleet import agents, apply, models
from kgwe.local.fleet.agents import AgentMachine
from kgwe.local.toolchain import build
from kgwe.model.gpu import mig
from kgwe.model.simfleet import inventory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.local.host.progress import Progress
    from kgwe.model.simfleet.inventory import FleetNode

_MODEL: Final = "mixed"
_NODES: Final = 16
_SCRAPE_S: Final = 15.0
_START_S: Final = 60.0
_HEARTBEAT_S: Final = 1.0
_HOUR_S: Final = 3600.0
_WRITTEN: Final = "kgwe_agent_api_written_bytes_total"
_WRITES: Final = "kgwe_agent_api_writes_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    # Seconds of measurement, after those of the warm-up.
    seconds: float = 60.0
    warm_up: float = 15.0
    standalone: bool = False

    def check(self) -> None:
        if self.seconds < 1 or self.warm_up < 0:
            raise errors.Permanent("--seconds must be at least 1, and --warm-up not negative")


def run(options: Options, progress: Progress) -> report.Report:
    options.check()
    if options.standalone:
        machine = report.examine_machine()
        return _report(options, _measure_all(options, None, progress), machine)
    found = build.ensure_binaries(progress)
    machine = report.examine_machine(kubernetes=clusters.read_version(found))
    with clusters.private_cluster(clusters.name_of("agent"), found, progress) as cluster:
        with progress.step("Creating nodes"):
            asyncio.run(_prepare(cluster))
        return _report(options, _measure_all(options, cluster, progress), machine)


async def _prepare(cluster: LocalCluster) -> None:
    async with KubeClient.connect(cluster.kubeconfig) as client:
        await agents.install(client)
        await apply.apply_fleet(client, models.load(_MODEL), _NODES)


def _report(options: Options, machines: dict[str, dict[str, Any]], machine: report.Machine) -> report.Report:
    """Return the worst of all nodes under the plain names, and all numbers by node."""
    metrics: dict[str, Any] = {
        name: _find_maximum(machines, name) for name in ("cpu_share", "rss_mb", "update_bytes_per_hour")
    }
    return report.Report("agent", dataclasses.asdict(options), {**metrics, "machines": machines}, machine)


def _find_maximum(machines: dict[str, dict[str, Any]], name: str) -> float | None:
    return max((each[name] for each in machines.values() if each[name] is not None), default=None)


def build_nodes() -> Iterator[tuple[str, FleetNode]]:
    """Return a node with eight whole GPUs, and one with eight GPUs of seven slices each."""
    known = {each.name: each for each in inventory.expand_fleet(models.load(_MODEL), _NODES)}
    yield "8 GPUs", known["h100-0000"]
    cut = known["a100-mig-0000"]
    geometry = cut.model.geometry
    if geometry is None:
        raise errors.InvariantBroken(f"a {cut.model.name} supports MIG")
    small = min(geometry.profiles.values(), key=lambda profile: (profile.units, profile.memory_mib, profile.name))
    layout = tuple(mig.Placement(small, start) for start in small.starts)
    pool = dataclasses.replace(cut.pool, layouts=(layout,) * len(cut.gpus))
    yield f"{len(layout) * len(cut.gpus)} MIG slices", dataclasses.replace(cut, pool=pool)


def _measure_all(options: Options, cluster: LocalCluster | None, progress: Progress) -> dict[str, dict[str, Any]]:
    found = {}
    for name, node in build_nodes():
        with (
            progress.step(f"Measuring {name}") as step,
            tempfile.TemporaryDirectory() as folder,
            AgentMachine(node, Path(folder)) as machine,
        ):
            found[name] = _measure(machine, options, cluster, step.update)
    return found


def _measure(
    machine: AgentMachine, options: Options, cluster: LocalCluster | None, say: Callable[[str], None]
) -> dict[str, Any]:
    kubeconfig = agents.write_kubeconfig(cluster) if cluster else None
    pid = machine.start(kubeconfig).pid
    say("starting")
    _await_ready(machine)
    _wait(machine, options.warm_up, say, "warming up")
    before, began = _cpu_s(pid), time.monotonic()
    counted = _read_counters(machine)
    _wait(machine, options.seconds, say, "measuring")
    cpu_s, seconds = _cpu_s(pid) - before, time.monotonic() - began
    written = _read_counters(machine) - counted
    numbers: dict[str, Any] = {
        "cpu_share": round(cpu_s / seconds, 5),
        "rss_mb": scheduler.memory_mb(pid, "VmRSS"),
        "rss_peak_mb": scheduler.memory_mb(pid, "VmHWM"),
        "metrics_kb": round(len(_scrape(machine)) / 1000, 1),
        "update_bytes_per_hour": None,
    }
    machine.kill()
    if cluster is not None:
        say("heartbeats")
        numbers |= _measure_bytes(machine, cluster, written, seconds)
    return numbers


def _measure_bytes(machine: AgentMachine, cluster: LocalCluster, written: Written, seconds: float) -> dict[str, Any]:
    machine.start(agents.write_kubeconfig(cluster), heartbeat_interval_seconds=str(_HEARTBEAT_S))
    _await_ready(machine)
    deadline = time.monotonic() + _START_S
    while (beats := _read_counters(machine)).heartbeats < 2 and time.monotonic() < deadline:  # noqa: PLR2004 - one may be odd
        time.sleep(_HEARTBEAT_S / 2)
    machine.kill()
    if not beats.heartbeats:
        raise errors.Transient(f"the agent did not write its GPUNode within {_START_S:.0f} s; see {machine.log}")
    each = beats.heartbeat_bytes / beats.heartbeats
    hourly = each * _HOUR_S / Settings().heartbeat_interval_seconds + written.other_bytes * _HOUR_S / seconds
    return {
        "update_bytes_per_hour": round(hourly),
        "changes_written": written.others,
        "heartbeat_bytes": round(each),
        "object_bytes": asyncio.run(_object_bytes(cluster, machine.node.name)),
    }


async def _object_bytes(cluster: LocalCluster, name: str) -> int:
    """Return the size of the object that each heartbeat sends to all watchers."""
    async with KubeClient.connect(cluster.kubeconfig) as client:
        return len(await client.request("GET", resources.GPU_NODE.path(name=name)))


# --- the process ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Written:
    """The writes of an agent to its GPUNode."""

    heartbeats: float = 0.0
    heartbeat_bytes: float = 0.0
    others: float = 0.0
    other_bytes: float = 0.0

    def __sub__(self, before: Written) -> Written:
        mine, other = dataclasses.astuple(self), dataclasses.astuple(before)
        return Written(*(a - b for a, b in zip(mine, other, strict=True)))


def read_counters(text: str) -> Written:
    found = {"heartbeat": [0.0, 0.0], "other": [0.0, 0.0]}
    for line in text.splitlines():
        for index, name in enumerate((_WRITES, _WRITTEN)):
            if line.startswith(f"{name}{{"):
                kind = "heartbeat" if 'kind="heartbeat"' in line else "other"
                found[kind][index] += float(line.rpartition(" ")[2])
    return Written(*found["heartbeat"], *found["other"])


def _read_counters(machine: AgentMachine) -> Written:
    return read_counters(_scrape(machine))


def _scrape(machine: AgentMachine) -> str:
    with urllib.request.urlopen(f"http://{machine.metrics_address}/metrics", timeout=10) as reply:
        return str(reply.read(), "utf-8")


def _await_ready(machine: AgentMachine) -> None:
    """Wait for the agent's first reading; with a cluster it publishes within a second."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if not machine.is_running():
            raise errors.Permanent(f"the agent exited: {machine.log.read_text()[-1000:]}")
        try:
            with urllib.request.urlopen(f"http://{machine.metrics_address}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise errors.Transient(f"the agent was not ready within {_START_S:.0f} s: {machine.log.read_text()[-1000:]}")


def _wait(machine: AgentMachine, seconds: float, say: Callable[[str], None], what: str) -> None:
    """Wait, and scrape from time to time."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        say(f"{what}, {left:.0f} s left")
        time.sleep(min(left, _SCRAPE_S))
        _scrape(machine)


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds so far of the process with its threads."""
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    # utime and stime of proc(5), counted after the closing bracket of the command.
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
