"""One cluster that nobody else uses, with everything a phase has in common with the others.

    namespaces → nodes → pods that stand there already → (KGWE) → ... → writes die down → count

What is asked of the cluster while a clock runs is the phase's own; here is only what comes before and after.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.bench.cluster import load, scenarios, scheduler
from kgwe.bench.cluster.measure import apiwrites
from kgwe.bench.cluster.nodes import leaf_of, offered
from kgwe.bench.cluster.scenarios import Phase
from kgwe.kube.api import resources
from kgwe.local.cluster import startup
from kgwe.local.fleet import apply
from kgwe.local.host import processes

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable, Mapping

    from kgwe.bench.cluster.load import Load
    from kgwe.bench.cluster.nodes import NodeSet
    from kgwe.bench.cluster.scenarios import Size
    from kgwe.kube.client.client import KubeClient
    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.local.host.processes import ProcessRecord
    from kgwe.local.host.progress import Step

NAMESPACE = "bench"
WARM_UP_NAMESPACE = "bench-warm-up"
STANDING_NAMESPACE = "bench-standing"
# The submitter, among the processes that use CPU and memory.
_SELF = "kgwe-bench"
_POLL_S = 0.1
# Writes have died down when none came for this long; what is counted by then is what the work cost.
_QUIET_S = 3.0
# Leftovers such as rate-limited Events may take long at large sizes.
_SETTLE_TIMEOUT_S = 180.0


class Bed:
    """A cluster, who places work on it, and how to wait for things."""

    def __init__(
        self,
        cluster: LocalCluster,
        client: KubeClient,
        work: Load,
        step: Step,
        *,
        port: int,
        timeout_s: float,
        profile: Path | None = None,
        tls: bool = True,
    ) -> None:
        """`port`: of the extender kube-scheduler was told of; `timeout_s`: for each wait; `tls`: whether the extender
        asks for certificates."""
        self.cluster = cluster
        self.client = client
        self.load = work
        self.step = step
        self._port = port
        self._timeout_s = timeout_s
        self._profile = profile
        self._tls = tls
        self.kgwe: ProcessRecord | None = None
        #: node -> GPUs it offers, and those of them that no standing pod has
        self.gpus: dict[str, int] = {}
        self.free: dict[str, int] = {}
        self.leaf_of: dict[str, str] = {}

    # --- before the clock runs --------------------------------------------------------------------------

    async def prepare(self, nodes: NodeSet, size: Size, seed: int) -> None:
        for name in (NAMESPACE, WARM_UP_NAMESPACE, STANDING_NAMESPACE):
            await self.client.apply(resources.NAMESPACE, {"metadata": {"name": name}})
            # Pods are refused until their namespace has a service account.
            account = functools.partial(self._exists, f"/api/v1/namespaces/{name}/serviceaccounts/default")
            await self.until(f"the service account of namespace {name}", account)
        if self.load.phase is Phase.KGWE:
            await scheduler.install(self.client)
        await nodes.create(self.client, lambda done, total: self.step.update(f"{done} of {total} nodes are created"))
        await self.until("all nodes to be ready", functools.partial(self._nodes_ready, nodes.count))
        await self._stand(size, seed)

    async def _stand(self, size: Size, seed: int) -> None:
        pods = scenarios.standing(self.load.scenario, size, self.gpus, seed)
        self.free = dict(self.gpus)
        for pod in pods:
            self.free[pod.node] -= pod.gpus
        say = self.step.update
        await load.stand(
            self.client, pods, STANDING_NAMESPACE, lambda done: say(f"{done} of {len(pods)} pods stand there")
        )
        if pods:
            await self.until("the pods that stand there to run", functools.partial(self._running, len(pods)))

    async def _running(self, count: int) -> bool:
        running = await self.client.list(resources.POD, STANDING_NAMESPACE, fieldSelector="status.phase=Running")
        self.step.update(f"{len(running)} of {count} standing pods run")
        return len(running) >= count

    async def _nodes_ready(self, count: int) -> bool:
        nodes = await self.client.list(resources.NODE)
        ready = [node for node in nodes if apply.is_open(node)]
        self.gpus = {node.metadata.name: offered(node) for node in ready}
        self.leaf_of = {node.metadata.name: leaf_of(node) for node in ready}
        self.step.update(f"{len(ready)} of {count} nodes are ready")
        return len(ready) == count

    async def _exists(self, path: str) -> bool:
        try:
            await self.client.request("GET", path)
        except errors.NotFound:
            return False
        return True

    async def start_kgwe(self) -> None:
        """Start KGWE and wait until it acts."""
        self.step.update("KGWE is starting")
        self.launch_kgwe()
        await self.until("KGWE to act", functools.partial(scheduler.listens, self._port))

    def launch_kgwe(self) -> None:
        self.kgwe = scheduler.start(self.cluster, self._port, profile=self._profile, tls=self._tls)

    def stop_kgwe(self) -> None:
        if self.kgwe is not None:
            processes.terminate([self.kgwe], grace_s=10.0)
            self.kgwe = None

    # --- waiting ----------------------------------------------------------------------------------------

    async def until(
        self,
        what: str,
        done: Callable[[], Awaitable[bool]],
        so_far: Callable[[], str] = lambda: "",
        *,
        poll_s: float = _POLL_S,
    ) -> None:
        """Ask again and again; a clear error when it takes too long or KGWE dies meanwhile."""
        deadline = time.monotonic() + self._timeout_s
        while not await done():
            if self.kgwe is not None and not processes.is_alive(self.kgwe):
                raise errors.Permanent(f"KGWE died while waiting for {what}.{self._last_words()}")
            if time.monotonic() > deadline:
                waited = f"phase {self.load.phase}: waited {self._timeout_s:g} s for {what}{so_far()}."
                raise errors.Transient(
                    f"{waited}{self._last_words()}\nNext: try a smaller size, or more time with --timeout-s."
                )
            await asyncio.sleep(poll_s)

    def _last_words(self) -> str:
        if self.kgwe is None:
            return ""
        return f"\nThe end of KGWE's log:\n{startup.tail(Path(self.kgwe.log))}"

    async def clear(self, namespace: str) -> None:
        """Delete all work of a namespace and wait until it is gone."""
        path = self.load.resource.path(namespace=namespace)
        asked = False

        async def gone() -> bool:
            nonlocal asked
            # Of thousands on a machine that has other work the API server may not be done in time: then once more.
            with contextlib.suppress(errors.Transient):
                if not asked:
                    await self.client.request("DELETE", path, body={"propagationPolicy": "Background"})
                asked = True
            pods = await self.client.list(resources.POD, namespace)
            return not pods and not await self.client.list(self.load.resource, namespace)

        await self.until(f"the work in {namespace} to be gone", gone)

    # --- counting ---------------------------------------------------------------------------------------

    async def settle(self) -> tuple[Counter[str], bool]:
        """The API server's count of writes once none has come for a while, and whether it came to that."""
        self.step.update("waiting until writes die down")
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        writes = self._writes()
        while time.monotonic() < deadline:
            # Seldom: one scrape of some MB costs the API server as much as twenty writes.
            await asyncio.sleep(_QUIET_S)
            latest = self._writes()
            if latest == writes:
                return writes, True
            writes = latest
        return writes, False

    def _writes(self) -> Counter[str]:
        with self.cluster.api() as api:
            return apiwrites.count_writes(api.text("/metrics"))

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds of each process of the cluster so far, and of this one."""
        everyone = self.cluster.state().everyone
        used = {name: usage.cpu_s for name, record in everyone.items() if (usage := processes.usage(record))}
        return {**used, _SELF: time.process_time()}

    def rss_mb(self) -> dict[str, float]:
        everyone = {name: record.pid for name, record in self.cluster.state().everyone.items()}
        return {name: scheduler.memory_mb(pid, "VmRSS") for name, pid in {**everyone, _SELF: os.getpid()}.items()}

    def rss_peak_mb(self) -> float | None:
        return None if self.kgwe is None else scheduler.memory_mb(self.kgwe.pid, "VmHWM")


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What came to each since; one that has started anew has all of it from since."""
    since = {name: used - before.get(name, 0.0) for name, used in after.items()}
    return {name: round(more if more >= 0 else after[name], 2) for name, more in since.items()}
