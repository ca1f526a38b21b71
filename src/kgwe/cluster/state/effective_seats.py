"""Seats with the devices that their pods really have, as the kubelet reports them.

A pod may have other GPUs than its seat: those are the ones that can fail under it. This holds only while the seat is
the one that the pod was started for. A seat that has been moved since is a new place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kgwe.model.devices import assignment
from kgwe.model.devices.assignment import DeviceSet

if TYPE_CHECKING:
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.kube.api import core
    from kgwe.placement.live.holding import Holding


def effective_seats(state: ClusterState, owner: str) -> dict[int, Holding]:
    """The owner's seats, each with the GPUs that its pod really has."""
    return {
        number: effective_seat(state, owner, number, seat)
        for number, seat in state.ledger.reserved_seats(owner).items()
    }


def effective_seat(state: ClusterState, owner: str, number: int, seat: Holding) -> Holding:
    pod = state.pods.get(state.ledger.pod_in(owner, number))
    if pod is None or assignment.parse_planned(pod.metadata.annotations) != DeviceSet(seat.gpus, seat.slices):
        return seat
    held = state.reader.reported_devices(seat.node, pod.metadata)
    return replace(seat, gpus=held.gpus, slices=held.slices) if held else seat


def effective_cards(state: ClusterState, pod: core.Pod) -> int:
    """Mask of the GPUs that the pod has, as its kubelet reports, else as planned."""
    held = state.reader.reported_devices(pod.spec.nodeName, pod.metadata)
    return (held or assignment.parse_planned(pod.metadata.annotations)).gpus
