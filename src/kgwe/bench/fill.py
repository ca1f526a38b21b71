"""One phase of the fill scenario on one fresh cluster: submit everything at once, wait until all of it is bound.

    nodes → (controller) → warm up, clean up → [ submit ... last bind ] → writes die down → check, count

The bracket is what the clock sees, and nothing of the benchmark but the submitter runs meanwhile: binds are read from
the audit log file, counters are scraped before and after. Afterwards the stored pods are counted node by node; a
run in which anything was bound twice, not at all, or where there was no room is reported as such.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kgwe import errors
from kgwe.bench import apiwrites, controller, load, timeline
from kgwe.bench.audit import AuditTail
from kgwe.bench.load import Phase
from kgwe.bench.nodes import offered, round_robin
from kgwe.bench.timeline import Timeline
from kgwe.kube import resources
from kgwe.kube.client import KubeClient
from kgwe.local import fleet, processes, startup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kgwe.bench.load import Load
    from kgwe.bench.nodes import NodeSet
    from kgwe.local.cluster import LocalCluster
    from kgwe.local.processes import ProcessRecord
    from kgwe.local.progress import Step

_NAMESPACE = "bench"
_WARM_UP_NAMESPACE = "bench-warm-up"
_POLL_S = 0.1
# Writes have died down when none came for this long; what is counted by then is what the work cost.
_QUIET_S = 3.0
# Leftovers such as rate-limited Events may take long at large sizes.
_SETTLE_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Size:
    nodes: NodeSet
    workloads: int
    warm_up: int
    # For each wait of a phase.
    timeout_s: float


class PhaseResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one phase did, in the order a reader asks."""

    per_s: float
    bind_p50_s: float
    bind_p99_s: float
    submit_s: float
    api_writes_per_pod: float
    # What must be zero.
    unbound: int
    doubled: int
    oversubscribed: int
    # Bindings the API server refused: no harm done, but work wasted.
    refused_bindings: int
    settled: bool
    wall_s: float
    cpu_s: dict[str, float]
    writes: dict[str, float]
    # Of the controller, in the phase that has one.
    rss_mb: float | None = None
    rss_peak_mb: float | None = None

    @property
    def is_correct(self) -> bool:
        return not (self.unbound or self.doubled or self.oversubscribed)


class Fill:
    """One phase on one cluster."""

    def __init__(
        self,
        cluster: LocalCluster,
        client: KubeClient,
        work: Load,
        size: Size,
        step: Step,
        *,
        seed: int,
        profile: Path | None,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._load = work
        self._size = size
        self._step = step
        self._seed = seed
        self._profile = profile
        self._controller: ProcessRecord | None = None
        #: node name -> GPUs it offers
        self._gpus: dict[str, int] = {}

    async def run(self) -> PhaseResult:
        began = time.monotonic()
        await self._prepare()
        await self._warm_up()
        writes_before, cpu_before = await self._settle(), self._cpu()
        times = await self._submit_and_wait(_NAMESPACE, self._size.workloads)
        settling = time.monotonic()
        writes_after = await self._settle()
        settled = time.monotonic() - settling < _SETTLE_TIMEOUT_S
        cpu = {name: round(used - cpu_before.get(name, 0.0), 2) for name, used in self._cpu().items()}
        writes = apiwrites.per_pod(writes_before, writes_after, self._size.workloads)
        binds = times.bind_seconds()
        unbound, oversubscribed = await self._check()
        return PhaseResult(
            per_s=round(times.rate(), 1),
            bind_p50_s=round(timeline.percentile(binds, 50), 3),
            bind_p99_s=round(timeline.percentile(binds, 99), 3),
            submit_s=round(times.submit_s(), 2),
            api_writes_per_pod=round(sum(writes.values()), 2),
            unbound=unbound,
            doubled=times.doubled,
            oversubscribed=oversubscribed,
            refused_bindings=times.refused,
            settled=settled,
            wall_s=round(time.monotonic() - began, 1),
            cpu_s=cpu,
            writes=writes,
            rss_mb=self._memory("VmRSS"),
            rss_peak_mb=self._memory("VmHWM"),
        )

    # --- before the clock runs --------------------------------------------------------------------------

    async def _prepare(self) -> None:
        for name in (_NAMESPACE, _WARM_UP_NAMESPACE):
            await self._client.apply(resources.NAMESPACE, {"metadata": {"name": name}})
            # Pods are refused until their namespace has a service account.
            account = functools.partial(self._exists, f"/api/v1/namespaces/{name}/serviceaccounts/default")
            await self._until(f"the service account of namespace {name}", account)
        await self._size.nodes.create(
            self._client, lambda done, total: self._step.update(f"{done} of {total} nodes are created")
        )
        await self._until("all nodes to be ready", self._nodes_ready)
        if self._load.phase is Phase.WORKLOADS:
            self._step.update("starting the controller")
            await controller.install(self._client)
            self._controller = controller.start(self._cluster, seed=self._seed, profile=self._profile)

    async def _warm_up(self) -> None:
        if not self._size.warm_up:
            return
        self._step.update("warming up")
        await self._submit_and_wait(_WARM_UP_NAMESPACE, self._size.warm_up)
        path = self._load.resource.path(namespace=_WARM_UP_NAMESPACE)
        await self._client.request("DELETE", path, body={"propagationPolicy": "Background"})
        await self._until("the warm-up work to be gone", self._warm_up_gone)

    async def _warm_up_gone(self) -> bool:
        pods = await self._client.list(resources.POD, _WARM_UP_NAMESPACE)
        return not pods and not await self._client.list(self._load.resource, _WARM_UP_NAMESPACE)

    async def _nodes_ready(self) -> bool:
        nodes = await self._client.list(resources.NODE)
        ready = [node for node in nodes if fleet.is_open(node)]
        self._gpus = {node.metadata.name: offered(node) for node in ready}
        self._step.update(f"{len(ready)} of {self._size.nodes.count} nodes are ready")
        return len(ready) == self._size.nodes.count

    async def _exists(self, path: str) -> bool:
        try:
            await self._client.request("GET", path)
        except errors.NotFound:
            return False
        return True

    # --- while the clock runs ---------------------------------------------------------------------------

    async def _submit_and_wait(self, namespace: str, count: int) -> Timeline:
        tail = AuditTail(self._cluster.audit_log, namespace)
        times = Timeline(self._load.resource.plural)
        targets = round_robin(self._gpus, self._load.gpus, count)

        async def all_bound() -> bool:
            times.add(tail.read())
            self._step.update(f"{len(times.submitted)} submitted, {len(times.bound)} bound of {count}")
            return len(times.bound) >= count

        async with asyncio.TaskGroup() as group:
            group.create_task(load.submit(self._client, self._load, count, namespace, targets))
            await self._until(f"all of {count} pods to be bound", all_bound, lambda: f"; {len(times.bound)} are")
        # The answers to the last submissions may have come after the last bind.
        times.add(tail.read())
        return times

    async def _until(
        self, what: str, done: Callable[[], Awaitable[bool]], so_far: Callable[[], str] = lambda: ""
    ) -> None:
        """Ask again and again; a clear error when it takes too long or the controller dies meanwhile."""
        deadline = time.monotonic() + self._size.timeout_s
        while not await done():
            if self._controller is not None and not processes.is_alive(self._controller):
                raise errors.Permanent(f"the controller died while waiting for {what}.{self._last_words()}")
            if time.monotonic() > deadline:
                waited = f"phase {self._load.phase}: waited {self._size.timeout_s:g} s for {what}{so_far()}."
                raise errors.Transient(
                    f"{waited}{self._last_words()}\nNext: try a smaller size, or more time with --timeout-s."
                )
            await asyncio.sleep(_POLL_S)

    def _last_words(self) -> str:
        if self._controller is None:
            return ""
        return f"\nThe end of the controller's log:\n{startup.tail(Path(self._controller.log))}"

    # --- after the clock has stopped --------------------------------------------------------------------

    async def _settle(self) -> Counter[str]:
        """The API server's count of writes once none has come for a while."""
        self._step.update("waiting until writes die down")
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        writes = self._writes()
        while time.monotonic() < deadline:
            # Seldom: one scrape of some MB costs the API server as much as twenty writes.
            await asyncio.sleep(_QUIET_S)
            latest = self._writes()
            if latest == writes:
                return writes
            writes = latest
        return writes

    def _writes(self) -> Counter[str]:
        with self._cluster.api() as api:
            return apiwrites.count_writes(api.text("/metrics"))

    def _cpu(self) -> dict[str, float]:
        """CPU seconds of each process of the cluster so far."""
        everyone = self._cluster.state().everyone
        return {name: used.cpu_s for name, record in everyone.items() if (used := processes.usage(record)) is not None}

    def _memory(self, field: str) -> float | None:
        return None if self._controller is None else controller.memory_mb(self._controller, field)

    async def _check(self) -> tuple[int, int]:
        """Pieces of work without a bound pod, and nodes with more GPUs promised than they have."""
        pods: list[Any] = await self._client.list(resources.POD, _NAMESPACE)
        bound = {timeline.owner_of(pod.metadata.name) for pod in pods if pod.spec.nodeName}
        holding = [pod for pod in pods if pod.spec.nodeName and pod.status.phase not in {"Succeeded", "Failed"}]
        held: Counter[str] = Counter()
        for pod in holding:
            held[pod.spec.nodeName] += self._load.gpus
        oversubscribed = sum(1 for node, gpus in held.items() if gpus > self._gpus.get(node, 0))
        return self._size.workloads - len(bound), oversubscribed


async def measure(
    cluster: LocalCluster, work: Load, size: Size, step: Step, *, seed: int, profile: Path | None
) -> PhaseResult:
    """Run one phase on a cluster that nobody else uses."""
    async with KubeClient.connect(cluster.kubeconfig, field_manager="kgwe-bench") as client:
        return await Fill(cluster, client, work, size, step, seed=seed, profile=profile).run()
