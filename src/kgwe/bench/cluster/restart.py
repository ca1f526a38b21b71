"""A phase that restarts the scheduler among thousands of running pods, and times its first decision.

    prepare, running pods → stop it → a gang waits → [ start it ... first decision ] → delete the gang, repeat

The gang is complete before the start, so only the start is timed. KGWE's first decision is the seat it writes on the
first pod; kube-scheduler's is its first binding. The null scheduler reads all nodes and pods, then binds: the minimum
for any scheduler.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import statistics
import time
from typing import TYPE_CHECKING

from kgwe.bench.cluster import bed, load, scenarios, scheduler
from kgwe.bench.cluster.measure.audit import SEATING, AuditTail
from kgwe.bench.cluster.phase import PhaseResult
from kgwe.bench.cluster.scenarios import Phase
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.local.cluster import components

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.bench.cluster.bed import Bed
    from kgwe.bench.cluster.measure.audit import Entry
    from kgwe.bench.cluster.nodes import NodeSet
    from kgwe.bench.cluster.scenarios import Piece, Size

_POLL_S = 0.02


class Restart:
    """One phase on one cluster."""

    def __init__(self, ground: Bed, size: Size) -> None:
        self._bed = ground
        self._pieces = scenarios.list_objects(ground.load.scenario, size)
        self._size = size

    async def run(self, nodes: NodeSet, *, starts: int, seed: int) -> PhaseResult:
        began = time.monotonic()
        ground = self._bed
        await ground.prepare(nodes, self._size, seed)
        _, settled = await ground.settle()
        load_1m, cpu_before = round(os.getloadavg()[0], 2), ground.cpu_s()
        decisions, binds = [], []
        for number in range(starts):
            ground.step.update(f"start {number + 1} of {starts}")
            decided, bound = await self._start_once()
            decisions.append(decided)
            binds.append(bound)
        cpu = bed.subtract_counters(cpu_before, ground.cpu_s())
        return PhaseResult(
            first_decision_s=round(statistics.median(decisions), 3),
            first_bind_s=round(statistics.median(binds), 3),
            starts_s=[round(each, 3) for each in decisions],
            settled=settled,
            wall_s=round(time.monotonic() - began, 1),
            load_1m=load_1m,
            cpu_s=cpu,
            rss_mb=ground.rss_mb(),
            rss_peak_mb=ground.rss_peak_mb(),
        )

    async def _start_once(self) -> tuple[float, float]:
        """Start the scheduler once. Return the seconds to the first decision, and to the first binding."""
        ground = self._bed
        phase = ground.load.phase
        self._stop()
        await load.submit(ground.client, ground.load, self._pieces, bed.NAMESPACE, {})
        seats = AuditTail(ground.cluster.audit_log, bed.NAMESPACE, *SEATING)
        binds = AuditTail(ground.cluster.audit_log, bed.NAMESPACE)
        seats.read(), binds.read()
        started = dt.datetime.now(dt.UTC)
        launching = asyncio.create_task(self._launch())
        first_seat = None if phase is not Phase.KGWE else await self._await_first_decision(seats, _is_seat)
        first_bind = await self._await_first_decision(binds, lambda entry: entry.is_binding)
        await launching
        await self._await_all_bound()
        await ground.clear(bed.NAMESPACE)
        seconds = [(entry.answered - started).total_seconds() for entry in (first_seat or first_bind, first_bind)]
        return seconds[0], seconds[1]

    def _stop(self) -> None:
        if self._bed.load.phase is Phase.KGWE:
            self._bed.stop_kgwe()
        elif self._bed.load.phase is Phase.KUBE_SCHEDULER:
            self._bed.cluster.kill(components.SCHEDULER)

    async def _launch(self) -> None:
        ground = self._bed
        if ground.load.phase is Phase.KGWE:
            await asyncio.to_thread(ground.launch_kgwe)
        elif ground.load.phase is Phase.KUBE_SCHEDULER:
            await asyncio.to_thread(ground.cluster.restart, components.SCHEDULER)
        else:
            await bind_after_reading(ground, self._pieces)

    async def _await_first_decision(self, tail: AuditTail, wanted: Callable[[Entry], bool]) -> Entry:
        found: list[Entry] = []

        async def is_decided() -> bool:
            found.extend(entry for entry in tail.read() if entry.succeeded and wanted(entry))
            return bool(found)

        await self._bed.wait_until("the first decision", is_decided, poll_s=_POLL_S)
        return found[0]

    async def _await_all_bound(self) -> None:
        async def is_bound() -> bool:
            pods = await self._bed.client.list(resources.POD, bed.NAMESPACE)
            return all(pod.spec.nodeName for pod in pods)

        await self._bed.wait_until("the gang to be bound", is_bound)


def _is_seat(entry: Entry) -> bool:
    return entry.object.resource == "pods" and not entry.object.subresource and entry.user.username == scheduler.USER


async def bind_after_reading(ground: Bed, pieces: Sequence[Piece]) -> None:
    """Do the minimum of any scheduler: connect, read all nodes and pods, bind."""
    async with KubeClient.connect(ground.cluster.kubeconfig, field_manager="kgwe-bench") as client:
        nodes = await client.list(resources.NODE)
        await client.list(resources.POD)
        for piece, node in zip(pieces, nodes, strict=False):
            await load.bind(client, piece.name, bed.NAMESPACE, node.metadata.name)
