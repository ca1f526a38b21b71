"""Places as they are: where a pod sits on other cards than its seat, its own are what can fail under it.

That holds for as long as the seat is the one the pod was started for. A seat that was given other cards since is a new
place, whoever is still in the old one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kgwe.model.devices import assignment
from kgwe.model.devices.assignment import Places

if TYPE_CHECKING:
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.kube.api import core
    from kgwe.placement.live.fleet import Holding


def effective_seats(state: ClusterState, owner: str) -> dict[int, Holding]:
    """The owner's seats, each with the cards its pod really has."""
    return {
        number: effective_seat(state, owner, number, seat)
        for number, seat in state.ledger.reserved_seats(owner).items()
    }


def effective_seat(state: ClusterState, owner: str, number: int, seat: Holding) -> Holding:
    pod = state.pods.get(state.ledger.pod_in(owner, number))
    if pod is None or assignment.planned(pod.metadata.annotations) != Places(seat.cards, seat.slices):
        return seat
    held = state.reader.reported_devices(seat.node, pod.metadata)
    return replace(seat, cards=held.cards, slices=held.slices) if held else seat


def effective_cards(state: ClusterState, pod: core.Pod) -> int:
    """Mask of the cards the pod has, as its kubelet says, else as planned."""
    held = state.reader.reported_devices(pod.spec.nodeName, pod.metadata)
    return (held or assignment.planned(pod.metadata.annotations)).cards
