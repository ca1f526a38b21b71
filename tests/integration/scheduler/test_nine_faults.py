"""Two replicas under nine kinds of faults, with an audit after each.

Each scenario starts on an empty cluster of four nodes with eight GPUs. Some work is there before the fault; while it
lasts more comes than fits, and some is deleted. When it is over the books must balance: no GPU given twice (looked at
after every event), no gang in part, and nothing waits that fits what is free. Then all of it is deleted, and four
workloads that fill every node must start: nothing was leaked.

`KGWE_FAULTS=resets,garbage pytest tests/integration/scheduler/test_nine_faults.py -m slow -s` runs some of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.bed import kgwe
from tests.support.clusters.pods import gang, pod
from tests.support.fakes.fault_proxy import NOISE, FaultProxy, nonsense, overloaded
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.translate import podspec
from kgwe.local.fleet import faults
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from tests.support.clusters.bed import Replica
    from tests.support.clusters.pods import Live

NODES, GPUS = 4, 8
# Longer than a Lease lasts: the other replica takes over.
FAULT_S = 9.0
# A machine under load is slow; what is stuck stays stuck.
SETTLES_S = 180.0
REPORT_S = 10.0
LONGEST_S = 1200


@dataclass(frozen=True)
class Unit:
    """One piece of work: so many pods of so many GPUs."""

    name: str
    pods: int
    gpus: int
    workload: Any = None

    @property
    def members(self) -> list[str]:
        return [f"{self.name}-{number}" for number in range(self.pods)]


class Bench:
    """The cluster, two replicas behind a proxy each, and work."""

    def __init__(self, live: Live, proxies: tuple[FaultProxy, FaultProxy], kubeconfigs: tuple[Path, Path]) -> None:
        self.live = live
        self.bed = live.bed
        self.proxies = proxies
        self._kubeconfigs = kubeconfigs
        self.replicas: list[Replica] = []
        self.units: dict[str, Unit] = {}
        self.overbooked: list[str] = []
        self._numbers = iter(range(10_000))
        self.bed.pods.on_change(self._look)

    async def start(self, number: int) -> Replica:
        """Replica `number`, which reaches the API server through its own proxy."""
        direct, self.bed._kubeconfig = self.bed._kubeconfig, self._kubeconfigs[number]
        try:
            return await self.live.scheduler()
        finally:
            self.bed._kubeconfig = direct

    async def leader(self) -> int:
        """Number of the replica that leads."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for number, replica in enumerate(self.replicas):
                    with contextlib.suppress(Exception):
                        if await replica.metric("kgwe_scheduler_leader") == 1:
                            return number
                await asyncio.sleep(0.1)

    # --- work -------------------------------------------------------------------------------------------

    async def submit(self, rng: random.Random, count: int) -> None:
        for _ in range(count):
            name = f"u{next(self._numbers):04}"
            kind = rng.choice(("workload", "workload", "pods", "gang", "gang", "pod"))
            if kind == "workload":
                unit = Unit(name, 1, rng.choice((1, 2, 4)))
                made = await self.bed.submit(kgwe(name, unit.gpus))
            elif kind == "pods":
                unit = Unit(name, 2, 4)
                made = await self.bed.submit(kgwe(name, 8, gpusPerPod=4))
            else:
                unit = Unit(name, 1, 1) if kind == "pod" else Unit(name, rng.choice((2, 3)), rng.choice((2, 4)))
                said = {} if kind == "pod" else gang(name, unit.pods)
                made = None
                for member in unit.members:
                    await self.bed.client.create(resources.POD, pod(member, unit.gpus, annotations=said), "default")
            self.units[name] = Unit(name, unit.pods, unit.gpus, made)

    async def delete(self, names: list[str]) -> None:
        for name in names:
            unit = self.units.pop(name)
            with contextlib.suppress(errors.NotFound):
                if unit.workload is not None:
                    await self.bed.delete(unit.workload)
                    continue
            for member in unit.members if unit.workload is None else ():
                with contextlib.suppress(errors.NotFound):
                    await self.bed.client.delete(resources.POD, member, "default", grace_s=0)

    # --- audit ------------------------------------------------------------------------------------------

    def _held(self) -> dict[str, int]:
        held = dict.fromkeys(self.bed.nodes.store, 0)
        for each in self.bed.pods.store.values():
            if each.spec.nodeName and not podspec.is_terminal(each):
                gpus = podspec.sum_requests(each.spec).get(amounts.GPU, 0)
                held[each.spec.nodeName] = held.get(each.spec.nodeName, 0) + gpus
        return held

    def _look(self, change: Any) -> None:
        self.overbooked += [
            f"{gpus} on {node} after {change.key}" for node, gpus in self._held().items() if gpus > GPUS
        ]

    def placed(self, unit: Unit) -> int:
        """How many of its pods have a node."""
        if unit.workload is None:
            pods = [self.bed.pods.store.get(f"default/{member}") for member in unit.members]
        else:
            jobs = {job.metadata.uid for job in self.bed.jobs_of(unit.workload)}
            pods = [
                each
                for each in self.bed.pods.store.values()
                if any(owner.uid in jobs for owner in each.metadata.ownerReferences)
            ]
        alive = [each for each in pods if each is not None and not podspec.is_terminal(each)]
        return sum(bool(each.spec.nodeName) for each in alive)

    def problems(self) -> list[str]:
        held = self._held()
        free = [GPUS - held[name] for name, node in self.bed.nodes.store.items() if podspec.is_ready(node)]
        found = []
        for unit in self.units.values():
            placed = self.placed(unit)
            if placed not in (0, unit.pods):
                found.append(f"{unit.name}: {placed} of {unit.pods} pods have a node")
            elif not placed and sum(room // unit.gpus for room in free) >= unit.pods:
                found.append(f"{unit.name} waits for {unit.pods} x {unit.gpus} GPUs, free: {free}")
            elif placed and unit.workload is not None and self.bed.phase(unit.workload) != "Running":
                found.append(f"{unit.name} is {self.bed.phase(unit.workload)} with all its pods placed")
        return found

    async def settle(self) -> None:
        """Wait until nothing is wrong, twice in a row."""
        end, clean = time.monotonic() + SETTLES_S, 0
        report = time.monotonic() + REPORT_S
        while clean < 2:
            problems = self.problems()
            clean = 0 if problems else clean + 1
            if problems and time.monotonic() > report:
                report += REPORT_S
                sys.stdout.write(f"  not yet: {'; '.join(problems)}\n")
            if problems and time.monotonic() > end:
                told = "\n---\n".join(replica.log.read_text()[-2500:] for replica in self.replicas)
                pytest.fail(f"after {SETTLES_S:.0f} s: {'; '.join(problems)}\n{told}")
            await asyncio.sleep(0.5)

    async def clear(self) -> None:
        await self.delete(list(self.units))
        await self.bed.until(lambda: not self.bed.pods.store and not self.bed.jobs.store, timeout_s=120)

    async def fill(self) -> None:
        """All GPUs can be given away."""
        for _ in range(NODES):
            name = f"u{next(self._numbers):04}"
            made = await self.bed.submit(kgwe(name, GPUS))
            self.units[name] = Unit(name, 1, GPUS, made)
        await self.bed.until(
            lambda: all(self.bed.phase(unit.workload) == "Running" for unit in self.units.values()), timeout_s=120
        )


# --- the faults -----------------------------------------------------------------------------------------


async def partition(bench: Bench, _rng: random.Random) -> None:
    proxy = bench.proxies[await bench.leader()]
    proxy.partition()
    await asyncio.sleep(FAULT_S)
    proxy.heal()


async def stop_and_go(bench: Bench, _rng: random.Random) -> None:
    replica = bench.replicas[await bench.leader()]
    replica.pause()
    await asyncio.sleep(FAULT_S)
    replica.resume()


async def kill(bench: Bench, _rng: random.Random) -> None:
    for _ in range(2):
        number = await bench.leader()
        bench.replicas[number].kill()
        await asyncio.sleep(1)
        bench.replicas[number] = await bench.start(number)


async def half_open(bench: Bench, _rng: random.Random) -> None:
    for proxy in bench.proxies:
        proxy.half_open()
    await asyncio.sleep(FAULT_S)


async def garbage(bench: Bench, rng: random.Random) -> None:
    for proxy in bench.proxies:
        proxy.disturb = nonsense(rng)
        proxy.garble = lambda: rng.random() < 0.2
    end = time.monotonic() + FAULT_S
    while time.monotonic() < end:
        for port in (bench.live.port, *(replica.port for replica in bench.replicas)):
            await _shout(port, rng.randbytes(200) + NOISE)
        await asyncio.sleep(0.2)
    for proxy in bench.proxies:
        proxy.heal()


async def _shout(port: int, noise: bytes) -> None:
    """Send noise to a port of a replica, which may not listen there."""
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(noise)
        await writer.drain()
        writer.close()


async def resets(bench: Bench, rng: random.Random) -> None:
    end = time.monotonic() + FAULT_S
    while time.monotonic() < end:
        rng.choice(bench.proxies).reset()
        await asyncio.sleep(rng.uniform(0.1, 0.6))


async def flapping(bench: Bench, rng: random.Random) -> None:
    for _ in range(3):
        for name in rng.sample(sorted(bench.bed.nodes.store), 2):
            await faults.node_down(bench.bed.client, name)
            await asyncio.sleep(rng.uniform(0, 2))
            await faults.clear(bench.bed.client, name)


async def mass_deletion(bench: Bench, _rng: random.Random) -> None:
    for unit in list(bench.units):
        bench.units.pop(unit)
    for path in ("apis/kgwe.nvidia.io/v1/namespaces/default/gpuworkloads", "api/v1/namespaces/default/pods"):
        await bench.bed.client.request("DELETE", f"/{path}", params={"gracePeriodSeconds": "0"})


async def overload(bench: Bench, rng: random.Random) -> None:
    for proxy in bench.proxies:
        proxy.disturb = overloaded(rng)
    await asyncio.sleep(FAULT_S)
    for proxy in bench.proxies:
        proxy.heal()


FAULTS: dict[str, Callable[[Bench, random.Random], Coroutine[Any, Any, None]]] = {
    "partition": partition,
    "sigstop": stop_and_go,
    "kill": kill,
    "half-open": half_open,
    "garbage": garbage,
    "resets": resets,
    "flapping": flapping,
    "mass-deletion": mass_deletion,
    "overload": overload,
}


# Those that happen on the way to the API server.
PROXIED = frozenset({"partition", "half-open", "garbage", "resets", "overload"})


@pytest.fixture
async def bench(live: Live, tmp_path: Path) -> AsyncIterator[Bench]:
    await live.nodes({"a": NODES // 2, "b": NODES // 2}, GPUS)
    cluster, kubeconfig = live.bed.cluster, live.bed._kubeconfig
    async with FaultProxy(cluster) as first, FaultProxy(cluster) as second:
        paths = first.kubeconfig(kubeconfig, tmp_path / "first"), second.kubeconfig(kubeconfig, tmp_path / "second")
        bench = Bench(live, (first, second), paths)
        bench.replicas = [await bench.start(0), await bench.start(1)]
        yield bench
        await bench.clear()
        for replica in bench.replicas:
            replica.resume()
            replica.kill()


async def suffer(bench: Bench, name: str) -> str:
    """One scenario from an empty cluster to the audit; returns what to print."""
    # One each: the fault and the work draw at the same time.
    rng, wrath = random.Random(name), random.Random(f"{name} fault")
    began = time.monotonic()
    await bench.submit(rng, 6)
    await bench.settle()
    before = sum(proxy.hits for proxy in bench.proxies)
    async with asyncio.TaskGroup() as group:
        group.create_task(FAULTS[name](bench, wrath))
        await asyncio.sleep(1)
        names = sorted(bench.units)
        await bench.delete(names[:2])
        await bench.submit(rng, 12)
    healed = time.monotonic()
    hits = sum(proxy.hits for proxy in bench.proxies) - before
    assert hits or name not in PROXIED, "the fault hit nothing"
    await bench.settle()
    settled_s = time.monotonic() - healed
    placed = [unit for unit in bench.units.values() if bench.placed(unit)]
    waiting = len(bench.units) - len(placed)
    line = (
        f"{name:14} {hits:3} hits, {len(bench.units)} units: {len(placed)} placed, {waiting} do not fit;"
        f" overbooked {len(bench.overbooked)}, gangs in part 0; settled {settled_s:.1f} s after the fault"
    )
    await bench.clear()
    await bench.fill()
    await bench.clear()
    return f"{line}; {time.monotonic() - began:.0f} s in all\n"


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
async def test_nine_faults_lose_nothing_double_nothing_and_leave_nothing_waiting(bench: Bench):
    for name in os.environ.get("KGWE_FAULTS", ",".join(FAULTS)).split(","):
        sys.stdout.write(await suffer(bench, name))
        sys.stdout.flush()
        assert bench.overbooked == [], name
