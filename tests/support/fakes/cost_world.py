"""A cost engine on an API server in memory, with a clock that the test moves, and a ledger in a SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any

from tests.support.fakes.memory_api import MemoryApi
from tests.support.patience import PATIENCE_S

from kgwe.apps import background
from kgwe.apps.cost import settings as cost_settings
from kgwe.apps.cost.cluster_view import ClusterView
from kgwe.apps.cost.engine import CostEngine
from kgwe.apps.cost.metrics import Metrics
from kgwe.costing.books import Dimension
from kgwe.kube.api import timestamp
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.informer import wait_synced
from kgwe.store.ledger.ledger import Ledger
from kgwe.store.ledger.reader import LedgerReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kgwe.apps.cost.usage import UsageFeed

# Later than the time at which the API server in memory creates objects.
T0 = int(time.time()) + 10**6
NODE = {
    "metadata": {
        "name": "n1",
        "labels": {
            "node.kubernetes.io/instance-type": "rack",
            "nvidia.com/gpu.product": "NVIDIA-L40S",
        },
    },
    "status": {"capacity": {"nvidia.com/gpu": "4", "cpu": "8", "memory": "64Gi"}},
}


def make_pod(name: str, start: int, end: int | None = None) -> dict[str, Any]:
    status: dict[str, Any] = {
        "phase": "Running" if end is None else "Succeeded",
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp.format_time(T0 + start)}
        ],
    }
    if end is not None:
        status["containerStatuses"] = [
            {"state": {"terminated": {"finishedAt": timestamp.format_time(T0 + end)}}},
        ]
    requests = {"requests": {"nvidia.com/gpu": "1"}}
    return {
        "metadata": {"name": name, "labels": {"team": "vision"}},
        "spec": {"nodeName": "n1", "containers": [{"resources": requests}]},
        "status": status,
    }


class World:
    def __init__(self, folder: Path) -> None:
        self.now = float(T0)
        self.api = MemoryApi()
        self.api.call("POST", "/api/v1/nodes", NODE)
        self.store = str(folder / "cost.db")
        self.metrics = Metrics()
        self.view: ClusterView | None = None

    def settings(self, **changes: Any) -> cost_settings.Settings:
        known = {"store": self.store, "split_method": "gpu-only", "tracking_seconds": 10**6, "leader_elect": False}
        return cost_settings.load(None, known | changes)

    @contextlib.asynccontextmanager
    async def engine(self, usage: UsageFeed | None = None, **changes: Any) -> AsyncIterator[CostEngine]:
        """An engine that counts when the test says so, and once at its start."""
        self.view = ClusterView(KubeClient(self.api))
        informers = self.view.informers
        async with background.run_in_background(each.run() for each in informers):
            await wait_synced(*informers)
            settings = self.settings(**changes)
            async with CostEngine(settings, self.view, self.metrics, usage=usage, clock=lambda: self.now) as made:
                yield made

    async def show(self, name: str, holds: Any) -> None:
        """Wait until the engine's watch has shown a pod."""
        assert self.view is not None
        async with asyncio.timeout(PATIENCE_S):
            while not holds(self.view._pods.store.get(f"ml/{name}")):  # noqa: ASYNC110 -- the informer has no event
                await asyncio.sleep(0)

    def create(self, pod: dict[str, Any]) -> None:
        self.api.call("POST", "/api/v1/namespaces/ml/pods", pod)

    def end(self, name: str, end: int) -> None:
        """The API shows that a pod has ended."""
        patch = {"status": make_pod(name, 0, end)["status"]}
        self.api.call("PATCH", f"/api/v1/namespaces/ml/pods/{name}/status", patch)

    def check_books(self, step_s: int = 37) -> None:
        """The fleet paid for every second, windows add up, and roll-ups equal segments."""
        with Ledger.open(self.store, read_only=True) as ledger:
            reader = LedgerReader(ledger.database)
            now = int(self.now)
            edges = [*range(T0, now, step_s), now]
            whole = reader.read(T0, now, Dimension.POD).books
            parts = [reader.read(*window, Dimension.POD).books for window in itertools.pairwise(edges)]
            assert [each.unbalanced for each in parts] == [0] * len(parts)
            assert whole.fleet == sum(each.fleet for each in parts) == 6_000_000 * (now - T0)
            assert whole.unallocated == sum(each.unallocated for each in parts)
            assert reader.sum_window(T0, now) == reader.scan(T0, now)

    def costs(self) -> dict[str, float]:
        """Dollars per pod, times 3600."""
        with Ledger.open(self.store, read_only=True) as ledger:
            found = LedgerReader(ledger.database).read(T0, int(self.now), Dimension.POD)
        assert found.books.unbalanced == 0
        return {name: sums.ticks / 1e6 for name, sums in found.lines.items()}
