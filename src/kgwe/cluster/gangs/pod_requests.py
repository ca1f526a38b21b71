"""What the pods of gangs ask for, read once per pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.cluster.workload.unpinned import strip_placement
from kgwe.kube.translate import podrequest

if TYPE_CHECKING:
    from kgwe.cluster.gangs.gang_table import GangTable
    from kgwe.cluster.registry.fleet_state import FleetState
    from kgwe.kube.api import core
    from kgwe.placement.fleet.node import Request


class PodRequests:
    """Requests by pod."""

    def __init__(self, fleet_state: FleetState, table: GangTable) -> None:
        self._fleet_state = fleet_state
        self._table = table
        self._known: dict[str, podrequest.PodRequest] = {}
        #: owners of pods that ask for shares of any size: what they ask for depends on the nodes
        self.unsized: set[str] = set()

    def read_request(self, pod: core.Pod) -> podrequest.PodRequest:
        """What the pod asks for, as before it got a place; Permanent if that cannot be read."""
        uid = pod.metadata.uid
        known = self._known.get(uid)
        if known is None:
            if not podrequest.says_its_share(pod):
                self.unsized.add(self._table.owners[uid])
                return podrequest.read_request(strip_placement(pod), pieces=self._fleet_state.fleet.shares_per_gpu(""))
            known = self._known[uid] = podrequest.read_request(strip_placement(pod))
        return known

    def request_of(self, pod: core.Pod) -> Request:
        return self.read_request(pod).request

    def forget_pod(self, uid: str) -> None:
        self._known.pop(uid, None)
