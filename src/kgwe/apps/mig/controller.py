"""One round of the controller: decides layouts, writes them, and evicts the pods that are in their way."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from kgwe.apps.mig import drains
from kgwe.apps.mig.layout_planner import LayoutPlanner
from kgwe.apps.mig.layout_writer import LayoutWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.mig.settings import Settings
    from kgwe.apps.mig.stores import Stores
    from kgwe.kube.client.client import KubeClient

FIELD_MANAGER: Final = "kgwe-mig"


class Controller:
    """One round after the other: call `reconcile` after a change. `clock` is monotonic, `wall` counts from 1970."""

    def __init__(
        self,
        client: KubeClient,
        settings: Settings,
        stores: Stores,
        *,
        record: drains.Record = lambda _event: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._stores = stores
        self.drain_executor = drains.DrainExecutor(
            client, record=record, pause_s=settings.drain_pause_seconds, clock=clock
        )
        self.planner = LayoutPlanner(settings, clock=clock, wall=wall)
        self._writer = LayoutWriter(client, settings, stores, clock=clock, wall=wall)
        self._movable: frozenset[str] = frozenset()  # uids of pods that consent to be moved

    def forget(self, uid: str) -> None:
        """Forget a deleted pod."""
        self.planner.forget(uid)

    async def reconcile(self) -> None:
        """Decide on all selected GPUs, write changes, and evict the pods that block them."""
        await self._decide_and_write()
        gpu_nodes, pods = self._writer.gpu_nodes().values(), self._stores.pods.values()
        if await self.drain_executor.evict_pods(gpu_nodes, pods, self._movable):
            await self._decide_and_write()

    async def _decide_and_write(self) -> None:
        # Runs in a thread on a copy: deciding for thousands of GPUs must not delay the renewal of the Lease.
        stores, refused = self._stores.copy(self._writer.gpu_nodes()), self.drain_executor.refused
        decided = await asyncio.to_thread(self.planner.decide, stores, refused)
        self._movable = frozenset(decided.movable)
        for node in sorted(decided.layouts.keys() | self._writer.list_written()):
            await self._writer.write_node(node, decided.layouts.get(node, {}))
        for name, outcome in decided.outcomes.items():
            await self._writer.write_status(name, outcome)
