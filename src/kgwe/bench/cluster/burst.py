"""A phase that submits everything at once: fill, gangs, biggang, fragmented, workloads, impossible.

    prepare → (KGWE) → warm up, clean up → [ submit ... last bind ] → writes settle → check, count

The bracket is the timed part. Only the submitter of the benchmark runs meanwhile: bindings come from the audit log
file, and counters are scraped before and after. Afterwards the pods are counted node by node. The report shows pods
that were not bound, were bound twice, or oversubscribe their node.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from kgwe.bench.cluster import bed, load, scenarios
from kgwe.bench.cluster.measure import apiwrites, locality, timeline
from kgwe.bench.cluster.measure.audit import AuditTail
from kgwe.bench.cluster.measure.refusals import Verdict
from kgwe.bench.cluster.measure.timeline import Timeline
from kgwe.bench.cluster.nodes import round_robin
from kgwe.bench.cluster.phase import PhaseResult
from kgwe.bench.cluster.scenarios import Phase, Scenario
from kgwe.kube.api import resources
from kgwe.kube.translate import podspec
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.bench.cluster.bed import Bed
    from kgwe.bench.cluster.nodes import NodeSet
    from kgwe.bench.cluster.scenarios import Piece, Size

# If not everything fits, the phase ends after this many seconds without a binding.
_IDLE_S = 5.0


class Burst:
    """One phase on one cluster."""

    def __init__(self, ground: Bed, size: Size) -> None:
        self._bed = ground
        self._scenario = ground.load.scenario
        self._pieces = self._divide(scenarios.list_objects(self._scenario, size))
        self._size = size
        self._pods = sum(piece.pods for piece in self._pieces)

    async def run(self, nodes: NodeSet, *, warm_up: int, seed: int) -> PhaseResult:
        began = time.monotonic()
        ground = self._bed
        await ground.prepare(nodes, self._size, seed)
        if ground.load.phase is Phase.KGWE:
            await ground.start_kgwe()
        await self._warm_up(warm_up)
        (writes_before, _), cpu_before = await ground.settle(), ground.cpu_s()
        load_1m = round(os.getloadavg()[0], 2)
        times, verdict = await self._measure()
        writes_after, settled = await ground.settle()
        cpu = bed.subtract_counters(cpu_before, ground.cpu_s())
        writes = apiwrites.per_pod(writes_before, writes_after, self._pods)
        result = PhaseResult(
            submit_s=round(times.submit_s(), 2),
            api_writes_per_pod=round(sum(writes.values()), 2),
            cpu_ms_per_pod=round(sum(cpu.values()) * 1e3 / self._pods, 2),
            doubled=times.doubled,
            refused_bindings=times.refused,
            settled=settled,
            load_1m=load_1m,
            cpu_s=cpu,
            rss_mb=ground.rss_mb(),
            rss_peak_mb=ground.rss_peak_mb(),
            writes=writes,
        )
        found = {**self._summarize_times(times), **await self._check(), **verdict}
        return msgspec.structs.replace(result, wall_s=round(time.monotonic() - began, 1), **found)

    def _divide(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces as this phase submits them: the null scheduler binds pods, not Jobs."""
        return scenarios.split_pods(pieces) if self._bed.load.phase is Phase.NULL else pieces

    async def _warm_up(self, count: int) -> None:
        count = min(count, sum(self._bed.free.values()))
        if not count:
            return
        self._bed.step.update("warming up")
        pieces = self._divide(scenarios.warm_up(self._scenario, count))
        await self._submit_and_wait(bed.WARM_UP_NAMESPACE, pieces, all_fit=True)
        await self._bed.clear(bed.WARM_UP_NAMESPACE)

    # --- while the clock runs ---------------------------------------------------------------------------

    async def _measure(self) -> tuple[Timeline, Mapping[str, Any]]:
        if self._scenario is not Scenario.IMPOSSIBLE:
            all_fit = scenarios.fits_all(self._scenario)
            return await self._submit_and_wait(bed.NAMESPACE, self._pieces, all_fit=all_fit), {}
        async with Verdict(self._bed.client, bed.NAMESPACE) as verdict:
            times = await self._submit_and_wait(bed.NAMESPACE, self._pieces, all_fit=False)
            if self._bed.load.phase is not Phase.NULL:
                await self._bed.wait_until("an Event that the gang does not fit", verdict.is_known)
        if times.accepted is None or verdict.at is None:
            return times, {}
        return times, {"verdict_s": round(verdict.seconds_after(times.accepted), 3), "verdict": verdict.words}

    async def _submit_and_wait(self, namespace: str, pieces: Sequence[Piece], *, all_fit: bool) -> Timeline:
        ground = self._bed
        tail = AuditTail(ground.cluster.audit_log, namespace)
        tail.read()  # skip older entries before the timed part
        pods = sum(piece.pods for piece in pieces)
        times = Timeline(ground.load.resource.plural, has_many_pods=pods > len(pieces))
        targets = self._choose_targets(pieces)
        moved = time.monotonic()

        async def is_over() -> bool:
            nonlocal moved
            before = len(times.submitted) + len(times.bound)
            times.add(tail.read())
            ground.step.update(f"{len(times.submitted)} submitted, {len(times.bound)} bound of {pods}")
            if len(times.bound) >= pods:
                return True
            if len(times.submitted) + len(times.bound) > before:
                moved = time.monotonic()
            all_there = len(times.submitted) >= len(pieces)
            return not all_fit and all_there and time.monotonic() - moved > _IDLE_S

        async with asyncio.TaskGroup() as group:
            group.create_task(load.submit(ground.client, ground.load, pieces, namespace, targets))
            await ground.wait_until(f"all {pods} pods to be bound", is_over, lambda: f"; {len(times.bound)} are")
        # Replies to the last submissions may arrive after the last binding.
        times.add(tail.read())
        return times

    def _choose_targets(self, pieces: Sequence[Piece]) -> dict[str, str]:
        """Return the target nodes for the phases without a scheduler."""
        if self._bed.load.phase not in {Phase.NULL, Phase.GATE}:
            return {}
        nodes = round_robin(self._bed.free, [piece.gpus for piece in pieces])
        return {piece.name: node for piece, node in zip(pieces, nodes, strict=True) if node is not None}

    # --- after the clock has stopped --------------------------------------------------------------------

    def _summarize_times(self, times: Timeline) -> dict[str, float]:
        if not times.bound:
            return {}
        binds = times.bind_seconds()
        found = {
            "per_s": round(times.rate(), 1),
            "bind_p50_s": round(timeline.percentile(binds, 50), 3),
            "bind_p99_s": round(timeline.percentile(binds, 99), 3),
        }
        if gangs := times.gang_seconds([[piece.name for piece in gang] for gang in self._group_gangs()]):
            found |= {
                "gang_p50_s": round(timeline.percentile(gangs, 50), 3),
                "gang_p99_s": round(timeline.percentile(gangs, 99), 3),
            }
        return found

    def _group_gangs(self) -> list[list[Piece]]:
        gangs: defaultdict[str, list[Piece]] = defaultdict(list)
        for piece in self._pieces:
            if piece.gang is not None:
                gangs[piece.gang.name].append(piece)
        return list(gangs.values())

    async def _check(self) -> dict[str, Any]:
        """Count pods without a binding and oversubscribed nodes, and measure the locality of gangs."""
        ground = self._bed
        pods: list[Any] = await ground.client.list(resources.POD, bed.NAMESPACE)
        node_of = {pod.metadata.name: pod.spec.nodeName for pod in pods if pod.spec.nodeName}
        held: Counter[str] = Counter()
        for pod in pods:
            if pod.spec.nodeName and not podspec.is_terminal(pod):
                held[pod.spec.nodeName] += podspec.sum_requests(pod.spec).get(amounts.GPU, 0)
        found: dict[str, Any] = {
            "unbound": self._pods - len(node_of),
            "oversubscribed": sum(1 for node, gpus in held.items() if gpus > ground.free.get(node, 0)),
        }
        nodes_of: defaultdict[str, list[str]] = defaultdict(list)
        for name, node in node_of.items():
            nodes_of[timeline.owner_of(name)].append(node)
        gangs = self._group_gangs() or [[piece] for piece in self._pieces if piece.pods > 1]
        if gangs:
            landed = [
                locality.Landed(
                    sum(each.pods for each in gang),
                    gang[0].gpus,
                    [node for each in gang for node in nodes_of.get(each.name, ())],
                )
                for gang in gangs
            ]
            found["nearness"] = locality.measure_locality(landed, ground.leaf_of, ground.free)
        return found
