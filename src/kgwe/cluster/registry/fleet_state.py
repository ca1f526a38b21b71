"""Nodes, their topology, the scheduler's configuration, and the ledger of what is in use on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from kgwe.cluster.workload.scheduler_policy import domain_weights, node_strategy, node_weights
from kgwe.kube.translate.nodes import FleetReader
from kgwe.placement.live.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.cluster.registry.announcer import Announcer
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.api.kgwe.migstrategy import MIGStrategy
    from kgwe.kube.api.kgwe.schedulerconfig import SchedulerConfig
    from kgwe.kube.api.kgwe.topologydomain import TopologyDomain
    from kgwe.kube.api.resource import ResourceSlice
    from kgwe.kube.client.informer import Change
    from kgwe.placement.live.fleet import LiveFleet

log = structlog.get_logger(__name__)


class FleetState:
    """The nodes as the API shows them."""

    def __init__(self, announcer: Announcer) -> None:
        self._announcer = announcer
        self.reader = FleetReader()
        self.ledger = Ledger(on_freed=announcer.capacity_freed)
        self.config: SchedulerConfig | None = None
        self._stale = False

    @property
    def fleet(self) -> LiveFleet:
        """The fleet after the last change; rebuilt only if nodes changed since the last call."""
        if self._stale:
            self.ledger.fleet.set_nodes(self.reader.nodes(), self.reader.tree())
            self._stale = False
            for problem in self.reader.problems:
                log.warning("topology_problem", problem=problem)
        return self.ledger.fleet

    def accepts_pods(self, name: str) -> bool:
        """Whether the node exists, is ready and schedulable."""
        node = self.fleet.node(name)
        return node is not None and node.ready

    def on_node(self, change: Change[core.Node]) -> None:
        self._set_node(change, self.reader.set_node, "node_unreadable")

    def on_gpunode(self, change: Change[GPUNode]) -> None:
        self._set_node(change, self.reader.set_gpu_node, "gpunode_unreadable")

    def _set_node(self, change: Change[Any], set_object: Callable[[str, Any], bool], event: str) -> None:
        """Read the object; one that cannot be read counts as absent, so that the other nodes stay usable."""
        name = change.key
        before = self.reader.reported_holders(name)
        try:
            self.mark_changed(set_object(name, change.new))
        except Exception as exc:  # noqa: BLE001 - one bad object must not stop the others
            log.warning(event, node=name, error=repr(exc))
            self.mark_changed(set_object(name, None))
        if self.reader.reported_holders(name) is not before:
            self._announcer.devices_reported(name)
            self._announcer.capacity_freed()
        self._announcer.health_changed(name)

    def on_domain(self, change: Change[TopologyDomain]) -> None:
        self.mark_changed(self.reader.set_domain(change.key, change.new))

    def on_strategy(self, change: Change[MIGStrategy]) -> None:
        self.mark_changed(self.reader.set_strategy(change.key, change.new))

    def on_slice(self, change: Change[ResourceSlice]) -> None:
        self.mark_changed(self.reader.set_slice(change.key, change.new))

    def set_config(self, config: SchedulerConfig | None) -> bool:
        """Take over the configuration; returns whether its spec changed."""
        is_same = self.config is not None and config is not None and self.config.spec == config.spec
        self.config = config
        if is_same:
            self.reader.set_config(config)
            return False
        self.ledger.fleet.configure(node_weights(config), domain_weights(config), node_strategy(config))
        self.mark_changed(self.reader.set_config(config))
        return True

    def mark_changed(self, changed: bool) -> None:  # noqa: FBT001 - the reader's answer
        """Rebuild the fleet before its next use, if a change of an object changed nodes."""
        if changed:
            self._stale = True
            self._announcer.nodes_changed()
            self._announcer.capacity_freed()
