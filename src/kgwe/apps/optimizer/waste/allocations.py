"""What a pod holds of the cluster, from the bookings of bound pods: not from its requests, its metrics or any advice.

Agents report which devices a pod holds; on nodes without an agent the devices are those that its node has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.apps.optimizer.waste.savings import Form, name_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kgwe.model.gpu.mig import Geometry, Placement
    from kgwe.placement.fleet.node import Node
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.live.fleet import LiveFleet

_MILLI: Final = 1000


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices of one pod."""

    form: Form
    gpus: float
    """GPUs that they are together: slices and shares are parts of one."""


@dataclass(frozen=True, slots=True)
class AllocationReader:
    """Reads the bookings of a fleet."""

    fleet: Callable[[], LiveFleet]

    def find(self, uid: str) -> Allocation | None:
        """Return what a bound pod holds; None if it holds no GPU, or its node has not all of it."""
        fleet = self.fleet()
        grants = [grant for grant in fleet.grants(uid) if grant.gpu_mask]
        if not grants or not fleet.is_fully_booked(uid):
            return None
        node = fleet.snapshot.nodes[grants[0].node]
        profiles = {placed.profile.name for grant in grants for _, placed in grant.slices}
        form = Form(
            sum(_count_milli(grant) for grant in grants),
            ", ".join(sorted(profiles)),
            name_model(node.shape.model),
            node.spot,
        )
        return Allocation(form, sum(_sum_parts(grant, node) for grant in grants))

    def sum_by_model(self, uids: Iterable[str]) -> dict[str, float]:
        """Return GPU model -> GPUs that these pods hold together."""
        total: dict[str, float] = {}
        for uid in uids:
            if (found := self.find(uid)) is not None:
                total[found.form.model] = total.get(found.form.model, 0.0) + found.gpus
        return total


def _count_milli(grant: Grant) -> int:
    shared = grant.share[1] if grant.share is not None else 0
    return shared + _MILLI * (grant.gpus.bit_count() + len(grant.slices))


def _sum_parts(grant: Grant, node: Node) -> float:
    shared = grant.share[1] / _MILLI if grant.share is not None else 0.0
    sliced = sum(divide_gpu(placed, node.cut.get(gpu, ()), node.shape.geometry) for gpu, placed in grant.slices)
    return grant.gpus.bit_count() + shared + sliced


def divide_gpu(placed: Placement, cut: Sequence[Placement], geometry: Geometry | None) -> float:
    """Return the part of a GPU that a slice takes from others.

    It is the larger of its parts of compute and memory. Of a GPU whose slices are more than one GPU together, each
    counts as much less.
    """
    if geometry is None:
        whole = sum(each.profile.units for each in cut)
        return placed.profile.units / whole if whole else 1.0

    def take(each: Placement) -> float:
        return max(each.profile.compute / geometry.compute, each.profile.units / geometry.units)

    return take(placed) / max(1.0, sum(take(each) for each in cut))
