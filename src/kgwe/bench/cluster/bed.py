"""The private cluster of one benchmark phase, with the steps that all phases share.

    namespaces → nodes → running pods → (KGWE) → ... → writes settle → count

This module prepares the cluster and counts afterwards; the phase itself does the timed part.
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
from kgwe.bench.cluster.nodes import leaf_of, read_gpu_count
from kgwe.bench.cluster.scenarios import Phase, Scenario
from kgwe.kube.api import resources
from kgwe.local.cluster import seat_webhook, startup
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
# Name of the submitter in the table of processes.
_SELF = "kgwe-bench"
_POLL_S = 0.1
# Seconds without a write after which the writes of the run count as complete.
_QUIET_S = 3.0
# Late writes, such as rate-limited Events, may take long at large sizes.
_SETTLE_TIMEOUT_S = 180.0


class Bed:
    """One cluster, the scheduler under test, and the waits of a phase."""

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
        """Set the extender's `port`, the timeout of each wait, and whether the extender requires TLS client
        certificates.
        """
        self.cluster = cluster
        self.client = client
        self.load = work
        self.step = step
        self._port = port
        self._timeout_s = timeout_s
        self._profile = profile
        self._tls = tls
        self._offer_port = 0
        #: pods of gangs get their seats while they are created
        self.offers = False
        self.kgwe: ProcessRecord | None = None
        #: node -> GPUs it offers, and GPUs that no running pod holds
        self.gpus: dict[str, int] = {}
        self.free: dict[str, int] = {}
        self.leaf_of: dict[str, str] = {}

    # --- before the clock runs --------------------------------------------------------------------------

    async def prepare(self, nodes: NodeSet, size: Size, seed: int) -> None:
        for name in (NAMESPACE, WARM_UP_NAMESPACE, STANDING_NAMESPACE):
            await self.client.apply(resources.NAMESPACE, {"metadata": {"name": name}})
            # Pods are refused until their namespace has a service account.
            account = functools.partial(self._account_exists, f"/api/v1/namespaces/{name}/serviceaccounts/default")
            await self.wait_until(f"the service account of namespace {name}", account)
        if self.load.phase is Phase.KGWE:
            await scheduler.install(self.client, policies=self.load.scenario is Scenario.JOBGANGS)
        await nodes.create(self.client, lambda done, total: self.step.update(f"{done} of {total} nodes are created"))
        await self.wait_until("all nodes ready", functools.partial(self._nodes_ready, nodes.count))
        await self._create_running_pods(size, seed)

    async def _create_running_pods(self, size: Size, seed: int) -> None:
        pods = scenarios.list_running_pods(self.load.scenario, size, self.gpus, seed)
        self.free = dict(self.gpus)
        for pod in pods:
            self.free[pod.node] -= pod.gpus
        say = self.step.update
        await load.create_bound_pods(
            self.client, pods, STANDING_NAMESPACE, lambda done: say(f"{done} of {len(pods)} running pods created")
        )
        if pods:
            await self.wait_until(
                "the pods created beforehand to run", functools.partial(self._count_running, len(pods))
            )

    async def _count_running(self, count: int) -> bool:
        running = await self.client.list(resources.POD, STANDING_NAMESPACE, fieldSelector="status.phase=Running")
        self.step.update(f"{len(running)} of {count} pods run")
        return len(running) >= count

    async def _nodes_ready(self, count: int) -> bool:
        nodes = await self.client.list(resources.NODE)
        ready = [node for node in nodes if apply.is_open(node)]
        self.gpus = {node.metadata.name: read_gpu_count(node) for node in ready}
        self.leaf_of = {node.metadata.name: leaf_of(node) for node in ready}
        self.step.update(f"{len(ready)} of {count} nodes are ready")
        return len(ready) == count

    async def _account_exists(self, path: str) -> bool:
        try:
            await self.client.request("GET", path)
        except errors.NotFound:
            return False
        return True

    async def start_kgwe(self) -> None:
        """Start KGWE and wait until it is the leader."""
        self.step.update("KGWE is starting")
        self.launch_kgwe()
        await self.wait_until("KGWE to become the leader", functools.partial(scheduler.is_listening, self._port))
        if self.offers:
            for name in (NAMESPACE, WARM_UP_NAMESPACE):
                await self.client.apply(resources.NAMESPACE, {"metadata": {"name": name, "labels": seat_webhook.LABEL}})
            await seat_webhook.configure(self.client, self.cluster, self._offer_port)

    def launch_kgwe(self) -> None:
        env = {}
        if self.offers:
            self._offer_port = scheduler.free_port(self.cluster.name)
            env = seat_webhook.build_environment(self._offer_port)
        self.kgwe = scheduler.start(self.cluster, self._port, profile=self._profile, tls=self._tls, env=env)

    def stop_kgwe(self) -> None:
        if self.kgwe is not None:
            processes.terminate([self.kgwe], grace_s=10.0)
            self.kgwe = None

    # --- waiting ----------------------------------------------------------------------------------------

    async def wait_until(
        self,
        what: str,
        done: Callable[[], Awaitable[bool]],
        so_far: Callable[[], str] = lambda: "",
        *,
        poll_s: float = _POLL_S,
    ) -> None:
        """Poll until the check succeeds; raise Permanent on a timeout or if KGWE exits."""
        deadline = time.monotonic() + self._timeout_s
        while not await done():
            if self.kgwe is not None and not processes.is_alive(self.kgwe):
                raise errors.Permanent(f"KGWE exited while waiting for {what}.{self._tail_log()}")
            if time.monotonic() > deadline:
                waited = f"phase {self.load.phase}: timed out after {self._timeout_s:g} s waiting for {what}{so_far()}."
                raise errors.Transient(f"{waited}{self._tail_log()}\nUse a smaller size or a larger --timeout-s.")
            await asyncio.sleep(poll_s)

    def _tail_log(self) -> str:
        if self.kgwe is None:
            return ""
        return f"\nLast lines of KGWE's log:\n{startup.read_tail(Path(self.kgwe.log))}"

    async def clear(self, namespace: str) -> None:
        """Delete all submitted objects of a namespace and wait until they are gone."""
        path = self.load.resource.path(namespace=namespace)
        asked = False

        async def is_deleted() -> bool:
            nonlocal asked
            # Deleting thousands of objects may exceed the request timeout on a loaded machine; retry then.
            with contextlib.suppress(errors.Transient):
                if not asked:
                    await self.client.request("DELETE", path, body={"propagationPolicy": "Background"})
                asked = True
            pods = await self.client.list(resources.POD, namespace)
            return not pods and not await self.client.list(self.load.resource, namespace)

        await self.wait_until(f"the objects in {namespace} to be deleted", is_deleted)

    # --- counting ---------------------------------------------------------------------------------------

    async def settle(self) -> tuple[Counter[str], bool]:
        """Wait until writes settle. Return the API server's count of writes, and whether they settled in time."""
        self.step.update("waiting until writes settle")
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        writes = self._count_writes()
        while time.monotonic() < deadline:
            # Scrape rarely: one scrape of several MB costs the API server as much as twenty writes.
            await asyncio.sleep(_QUIET_S)
            latest = self._count_writes()
            if latest == writes:
                return writes, True
            writes = latest
        return writes, False

    def _count_writes(self) -> Counter[str]:
        with self.cluster.api() as api:
            return apiwrites.count_writes(api.text("/metrics"))

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds so far of each process of the cluster, and of this process."""
        everyone = self.cluster.state().everyone
        used = {name: usage.cpu_s for name, record in everyone.items() if (usage := processes.read_usage(record))}
        return {**used, _SELF: time.process_time()}

    def rss_mb(self) -> dict[str, float]:
        everyone = {name: record.pid for name, record in self.cluster.state().everyone.items()}
        return {name: scheduler.memory_mb(pid, "VmRSS") for name, pid in {**everyone, _SELF: os.getpid()}.items()}

    def rss_peak_mb(self) -> float | None:
        return None if self.kgwe is None else scheduler.memory_mb(self.kgwe.pid, "VmHWM")


def subtract_counters(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the growth of each counter. A process that restarted counts from zero."""
    since = {name: used - before.get(name, 0.0) for name, used in after.items()}
    return {name: round(more if more >= 0 else after[name], 2) for name, more in since.items()}
