"""Reservations for nominated pods: pods for which kube-scheduler preempts others, until they are bound.

kube-scheduler writes the node into the pod's status and keeps its other pods away from it. The planner sees the freed
resources before kube-scheduler does, so they are reserved in the ledger. The victims may be gone before the watch shows
the nomination, so the reservation begins with the answer to kube-scheduler, and ends if no nomination follows.
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
        self._expected: dict[str, float] = {}  # pods that are about to be nominated -> until when

    def on_pod(self, uid: str, pod: core.Pod | None) -> None:
        """A pod that no workload owns was added, changed or (None) removed."""
        ledger = self._ledger
        node = _nominated_node(pod)
        if node and pod is not None:
            self._expected.pop(uid, None)
            if (wanted := _read_requests(pod)) and uid not in ledger.assumed:
                ledger.reserve_seats(Nomination(uid).text, {0: Holding(node, wanted)})
                self._reserved.add(uid)
        elif uid in self._reserved and (uid not in self._expected or not _may_be_nominated(pod)):
            self._release(uid)

    def expect(self, pod: core.Pod, node: str, until: float) -> None:
        """kube-scheduler is about to stop pods on the node for this pod: reserve what it wants until then."""
        uid = pod.metadata.uid
        if _may_be_nominated(pod) and not _nominated_node(pod) and (wanted := _read_requests(pod)):
            self._ledger.reserve_seats(Nomination(uid).text, {0: Holding(node, wanted)})
            self._reserved.add(uid)
            self._expected[uid] = until

    def expire(self, now: float) -> None:
        """Release what was reserved for pods that were not nominated in time."""
        for uid in [uid for uid, until in self._expected.items() if until <= now]:
            self._release(uid)

    def _release(self, uid: str) -> None:
        self._ledger.release_seats(Nomination(uid).text)
        self._reserved.discard(uid)
        self._expected.pop(uid, None)


def _may_be_nominated(pod: core.Pod | None) -> bool:
    return pod is not None and not pod.spec.nodeName and pod.metadata.deletionTimestamp is None


def _nominated_node(pod: core.Pod | None) -> str:
    return pod.status.nominatedNodeName if pod is not None and _may_be_nominated(pod) else ""


def _read_requests(pod: core.Pod) -> dict[str, int]:
    """What the pod takes of its node; empty if it wants no GPUs or its request cannot be read."""
    try:
        wanted = podspec.sum_requests(pod.spec)
    except errors.Permanent:
        return {}
    return wanted if podrequest.asks_for_gpus(wanted) else {}
