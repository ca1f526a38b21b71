"""Room that kube-scheduler is making for a plain pod: kept for it, from when its victims are chosen until it is bound.

kube-scheduler writes the node into the pod's status and keeps other pods of its own away from it. The planner, which
sees room come free before kube-scheduler does, has to be told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.kube.translate import podrequest, podspec
from kgwe.placement.live.fleet import Holding

if TYPE_CHECKING:
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.kube.api import core


def nominated_key(uid: str) -> str:
    """Whom the room is reserved for in the ledger."""
    return f"nominated:{uid}"


class Nominations:
    """Every replica keeps them."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def on_pod(self, uid: str, pod: core.Pod | None) -> None:
        """A pod that no workload of ours owns came, changed or (None) went."""
        key, ledger = nominated_key(uid), self._state.ledger
        node = _nominated(pod)
        if node and pod is not None:
            if (wanted := _wanted(pod)) and uid not in ledger.assumed:
                ledger.reserve(key, {0: Holding(node, wanted)})
        elif ledger.has_seats(key):
            ledger.release(key)


def _nominated(pod: core.Pod | None) -> str:
    if pod is None or pod.spec.nodeName or pod.metadata.deletionTimestamp is not None:
        return ""
    return pod.status.nominatedNodeName


def _wanted(pod: core.Pod) -> dict[str, int]:
    """What it takes of its node; nothing when it wants no GPUs, or nobody can tell."""
    try:
        wanted = podspec.requested(pod.spec)
    except errors.Permanent:
        return {}
    return wanted if podrequest.asks_for_gpus(wanted) else {}
