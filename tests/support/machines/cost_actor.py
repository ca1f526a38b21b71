"""A cost engine in a process of its own, for tests that kill it. It lives through a simulated day, minute by minute.

The API server is in memory, and shows what the event log says at each moment. The engine, its watches and its store are
real. The process prints the simulated second of each count that was stored.
"""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.fakes.memory_api import MemoryApi

from kgwe.apps import background
from kgwe.apps.cost import settings as cost_settings
from kgwe.apps.cost.cluster_view import ClusterView
from kgwe.apps.cost.engine import CostEngine
from kgwe.apps.cost.metrics import Metrics
from kgwe.kube.api import timestamp
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.informer import wait_synced
from kgwe.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Sequence

# Later than the time at which the API server in memory creates objects.
T0 = 2_000_000_000
STEP_S = 60
#: of a GPU of a node, per hour; a share is a quarter
GPU_MICROS = 1_500_000
GPUS = 4
SHARES = 4
_LATE_S = 100
#: after the day, so that all of it is settled
AFTER_S = 300
_KEPT_S = 900


@dataclass(frozen=True)
class PodLog:
    """What happened to a pod, and when the API showed it."""

    name: str
    node: int
    start_s: int
    seen_s: int
    end_s: int
    end_seen_s: int

    @property
    def gone_s(self) -> int:
        return self.end_seen_s + _KEPT_S


def is_shared(node: int) -> bool:
    return node % 2 == 1


def make_log(pods: int, day_s: int, seed: int) -> list[PodLog]:
    """Pods one after the other on each GPU or share, so that no GPU has more than it can hold."""
    rng = random.Random(seed)
    nodes = max(2, round(pods / 250))
    places = [(node, place) for node in range(nodes) for place in range(GPUS * (SHARES if is_shared(node) else 1))]
    mean_s = day_s * len(places) / pods
    log: list[PodLog] = []
    free = {each: T0 + rng.randint(1, max(int(mean_s), 2)) for each in places}
    while len(log) < pods and free:
        place = min(free, key=lambda each: free[each])
        start_s = free[place]
        if start_s >= T0 + day_s:
            break
        # A place is used again only after the API has shown its end: so the kubelet works, too.
        end_s = start_s + rng.randint(1, max(int(1.6 * mean_s), 2))
        end_seen_s = end_s + rng.randint(0, _LATE_S)
        log.append(PodLog(f"pod-{len(log)}", place[0], start_s, start_s + rng.randint(0, _LATE_S), end_s, end_seen_s))
        free[place] = end_seen_s + rng.randint(0, 60)
    return log


def count_nodes(log: Sequence[PodLog]) -> int:
    return 1 + max(each.node for each in log)


def make_node(number: int) -> dict[str, Any]:
    labels = {"node.kubernetes.io/instance-type": "rack", "nvidia.com/gpu.product": "NVIDIA-L40S"}
    if is_shared(number):
        labels |= {"nvidia.com/gpu.replicas": str(SHARES), "nvidia.com/gpu.count": str(GPUS)}
    count = GPUS * (SHARES if is_shared(number) else 1)
    capacity = {"nvidia.com/gpu": str(count), "cpu": "8", "memory": "64Gi"}
    return {"metadata": {"name": f"n{number}", "labels": labels}, "status": {"capacity": capacity}}


def make_pod(each: PodLog, now_s: int) -> dict[str, Any]:
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp.format_time(each.start_s)}
    status: dict[str, Any] = {"phase": "Running", "conditions": [bound]}
    if each.end_seen_s <= now_s:
        ended = {"state": {"terminated": {"finishedAt": timestamp.format_time(each.end_s)}}}
        status |= {"phase": "Succeeded", "containerStatuses": [ended]}
    spec = {"nodeName": f"n{each.node}", "containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
    return {"metadata": {"name": each.name, "uid": each.name}, "spec": spec, "status": status}


class ShownDay:
    """An API server in memory that shows the log up to a moment."""

    def __init__(self, log: Sequence[PodLog]) -> None:
        self.api = MemoryApi()
        self._log = log
        self._uid = ""
        self.shown: dict[str, bool] = {}
        """Pod -> whether its end is shown."""
        for number in range(count_nodes(log)):
            self.api.call("POST", "/api/v1/nodes", make_node(number))
        self.api.make_uid = lambda _number: self._uid

    def show(self, now_s: int) -> None:
        for each in self._log:
            known = self.shown.get(each.name)
            if each.gone_s <= now_s:
                if known is not None:
                    self.api.call("DELETE", f"/api/v1/namespaces/ml/pods/{each.name}")
                    del self.shown[each.name]
            elif each.seen_s <= now_s:
                is_over = each.end_seen_s <= now_s
                if known is None:
                    # The same pod for every process of the day.
                    self._uid = each.name
                    self.api.call("POST", "/api/v1/namespaces/ml/pods", make_pod(each, now_s))
                elif is_over and not known:
                    status = {"status": make_pod(each, now_s)["status"]}
                    self.api.call("PATCH", f"/api/v1/namespaces/ml/pods/{each.name}/status", status)
                self.shown[each.name] = is_over

    def is_seen_by(self, view: ClusterView) -> bool:
        """Whether the watch has shown all of it."""
        store = view._pods.store
        found = {pod.metadata.name: pod.status.phase == "Succeeded" for pod in store.values()}
        return found == self.shown


async def live(url: str, log: Sequence[PodLog], prices: str, first_s: int, last_s: int) -> None:
    """Count every simulated minute."""
    day, clock = ShownDay(log), [float(first_s)]
    day.show(first_s)
    view = ClusterView(KubeClient(day.api))
    settings = cost_settings.load(
        None,
        {
            "store": url,
            "split_method": "gpu-only",
            "tracking_seconds": 10**6,
            "leader_elect": False,
            "price_files": (prices,),
        },
    )
    async with background.run_in_background(each.run() for each in view.informers):
        await wait_synced(*view.informers)
        async with CostEngine(settings, view, Metrics(), clock=lambda: clock[0]) as engine:
            await _count_minutes(engine, view, day, clock, last_s)


async def _count_minutes(engine: CostEngine, view: ClusterView, day: ShownDay, clock: list[float], last_s: int) -> None:
    while True:
        day.show(int(clock[0]))
        while not day.is_seen_by(view):  # noqa: ASYNC110 -- the informer has no event
            await asyncio.sleep(0)
        await engine.count()
        if engine.problem() is None:
            sys.stdout.write(f"{int(clock[0])}\n")
            sys.stdout.flush()
        else:
            # The store is away: simulated time goes on, but no faster than it can come back.
            await asyncio.sleep(0.05)
        if clock[0] >= last_s:
            return
        clock[0] = min(clock[0] + STEP_S, last_s)


def main(url: str, pods: str, day_s: str, seed: str, prices: str, first_s: str) -> None:
    logs.configure(level="error")
    log = make_log(int(pods), int(day_s), int(seed))
    asyncio.run(live(url, log, prices, int(first_s), T0 + int(day_s) + AFTER_S))


if __name__ == "__main__":
    main(*sys.argv[1:])
