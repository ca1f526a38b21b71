"""Writes layouts into the specs of GPUNodes, and the status of MIGStrategies."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import structlog

from kgwe import errors
from kgwe.apps.mig import drains
from kgwe.apps.mig.status import build_status, changes_only_messages
from kgwe.kube.api import resources, timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.apps.mig.settings import Settings
    from kgwe.apps.mig.status import Outcome
    from kgwe.apps.mig.stores import Stores
    from kgwe.kube.api.kgwe.gpunode import CardSpec, GPUNode
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)


class LayoutWriter:
    """Writes changes only. `clock` is monotonic, `wall` counts from 1970."""

    def __init__(
        self,
        client: KubeClient,
        settings: Settings,
        stores: Stores,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._settings = settings
        self._stores = stores
        self._clock = clock
        self._wall = wall
        self._written: dict[str, GPUNode] = {}  # newer than the watch
        self._of_administrators: dict[str, tuple[CardSpec, ...]] = {}  # node -> layouts that KGWE did not write
        self._reported_at: dict[str, float] = {}  # strategy -> time of the last status write

    def gpu_nodes(self) -> Mapping[str, GPUNode]:
        """Return GPUNodes from the watch, or as written since."""
        shown = self._stores.gpu_nodes
        self._written = {
            name: obj for name, obj in self._written.items() if name in shown and _is_newer(obj, shown[name])
        }
        return {**shown, **self._written}

    def list_written(self) -> set[str]:
        """Return the nodes whose spec has a decision."""
        return {name for name, obj in self.gpu_nodes().items() if obj.spec.cards}

    async def write_node(self, node: str, cards: Mapping[str, CardSpec]) -> None:
        obj = self.gpu_nodes()[node]
        wanted = tuple(cards[device.uuid] for device in obj.status.gpus if device.uuid in cards)
        if wanted == obj.spec.cards or (not wanted and self._of_administrators.get(node) == obj.spec.cards):
            return
        # The uid keeps a deleted node from being recreated empty.
        body: dict[str, Any] = {"metadata": {"name": node, "uid": obj.metadata.uid}, "spec": {}}
        if wanted:
            body["spec"]["cards"] = [drains.manifest(card) for card in wanted]
        try:
            written = self._written[node] = await self._client.apply(resources.GPU_NODE, body)
        except (errors.NotFound, errors.Conflict) as exc:
            log.info("gpunode_gone", node=node, error=str(exc))
            return
        if not wanted:
            # Other writers, such as an administrator, own the rest: no strategy selects the node.
            self._of_administrators[node] = written.spec.cards

    async def write_status(self, name: str, outcome: Outcome) -> None:
        strategy = self._stores.strategies.get(name)
        if strategy is None:
            return
        status = build_status(strategy, outcome, timestamp.format_time(self._wall()))
        if status is None:
            return
        now_s = self._clock()
        if (
            changes_only_messages(strategy, status)
            and now_s - self._reported_at.get(name, -math.inf) < self._settings.message_interval_seconds
        ):
            return
        self._reported_at[name] = now_s
        body = {"metadata": {"resourceVersion": strategy.metadata.resourceVersion}, "status": status}
        try:
            await self._client.patch(resources.MIG_STRATEGY, name, body, subresource="status")
        except (errors.NotFound, errors.Conflict) as exc:
            log.info("strategy_changed", strategy=name, error=str(exc))


def _is_newer(mine: GPUNode, shown: GPUNode) -> bool:
    versions = mine.metadata.resourceVersion, shown.metadata.resourceVersion
    return (
        mine.metadata.uid == shown.metadata.uid
        and all(map(str.isdigit, versions))
        and (int(versions[0]) > int(versions[1]))
    )
