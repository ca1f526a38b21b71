"""Reservations for nominated pods: pods for which kube-scheduler preempts others, until they are bound.

kube-scheduler writes the node into the pod's status and keeps its other pods away from it. The planner sees the freed
resources before kube-scheduler does, so they are reserved in the ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.cluster.workload.owner import Nomination
from kgwe.kube.translate import podrequest, podspec
from kgwe.placement.live.holding import Holding

if TYPE_CHECKING:
    from kgwe.kube.api import core
    from kgwe.placement.live.ledger import Ledger


class Nominations:
    """Keeps the reservations in step with the pods."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._reserved: set[str] = set()  # pods that may have a reservation

    def on_pod(self, uid: str, pod: core.Pod | None) -> None:
        """A pod that no workload owns was added, changed or (None) removed."""
        ledger = self._ledger
        node = _nominated_node(pod)
        if node and pod is not None:
            if (wanted := _read_requests(pod)) and uid not in ledger.assumed:
                ledger.reserve_seats(Nomination(uid).text, {0: Holding(node, wanted)})
                self._reserved.add(uid)
        elif uid in self._reserved:
            ledger.release_seats(Nomination(uid).text)
            self._reserved.remove(uid)


def _nominated_node(pod: core.Pod | None) -> str:
    if pod is None or pod.spec.nodeName or pod.metadata.deletionTimestamp is not None:
        return ""
    return pod.status.nominatedNodeName


def _read_requests(pod: core.Pod) -> dict[str, int]:
    """What the pod takes of its node; empty if it wants no GPUs or its request cannot be read."""
    try:
        wanted = podspec.sum_requests(pod.spec)
    except errors.Permanent:
        return {}
    return wanted if podrequest.asks_for_gpus(wanted) else {}
