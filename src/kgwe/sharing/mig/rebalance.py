"""Decide the layouts of the GPUs of a MIGStrategy, from its distribution, waiting requests and forecast demand.

GPUs are considered as they will be once all pending changes are applied, so a request that waits for a cut in progress
does not cause a second one. The order is:

1. Set spare slices aside for waiting requests, oldest first; all slices of a pod must be on one node.
2. Apply the distribution (`strategy.fit_distribution`). A fixed distribution is always applied. A dynamic one is
   applied to new GPUs and when a rebalance is due, and then only if it would move a tenth of the memory units.
3. Find the cheapest re-cut for each remaining request (`recut.plan_recut`). Slices that were often in use are destroyed
   last. GPUs that the distribution leaves whole stay whole.
4. If no re-cut helps, ask pods that consent to leave (`draining`); the GPU is cut when they have left.
5. Create one slice of each preferred profile that has no spare slice, if free units allow it.

Slices in use and GPUs that are being cut are never changed. The gate limits how many nodes begin a cut at a time.
Decisions are stable: the same input gives the same layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe.sharing.mig import draining
from kgwe.sharing.mig.working_set import WorkingSet, known_profiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.gpu import mig
    from kgwe.sharing.mig.types import Gate, Group, PartitionedGpu, SliceRequest

__all__ = ["Decision", "assign_groups", "decide_layouts", "known_profiles"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The layouts, and the requests that still wait."""

    gpus: tuple[PartitionedGpu, ...]
    """In the given order, with their desired layouts."""
    gate: Gate
    changed: frozenset[str]
    """UUIDs of GPUs whose layout changes."""
    waiting: Mapping[str, str]
    """Waiting request -> why it waits."""
    short: Mapping[str, int]
    """Profile -> slices of the distribution that no layout has room for."""


def decide_layouts(group: Group, asks: Sequence[SliceRequest], gate: Gate) -> Decision:
    """Decide the layouts of the GPUs now."""
    working_set = WorkingSet(group, gate)
    left = _set_aside(working_set, (ask for ask in asks if ask.profile in group.geometry.profiles))
    under_way = {uid for gpu in working_set.gpus if gpu.drain for uid in gpu.drain.pods}
    working_set.set_aside(each.request for each in group.movable if each.uid in under_way)
    short = working_set.apply_distribution()
    left = _set_aside(working_set, left)
    if group.is_dynamic:
        drained = {gpu.drain.ask for gpu in working_set.gpus if gpu.drain}
        # Requests that pods are moved for come first: a moved pod must not get its old slices back.
        left.sort(key=lambda ask: ask.name not in drained)
        waiting = {ask.name: why for ask in left if (why := _serve_request(working_set, ask)) is not None}
        if group.may_drain:
            _request_drains(working_set, group, left, waiting)
        for profile in group.preferred:
            working_set.warm_up(profile)
    else:
        working_set.end_drains(lambda _gpu, _drain: True)
        waiting = {ask.name: f"no spare {ask.profile}, and allowDynamicReconfig is false" for ask in left}
    changed = {
        new.uuid for old, new in zip(group.gpus, working_set.gpus, strict=True) if _layout_key(old) != _layout_key(new)
    }
    return Decision(working_set.gpus, working_set.gate, frozenset(changed), waiting, short)


def assign_groups(groups: Sequence[Sequence[PartitionedGpu]], asks: Iterable[SliceRequest]) -> dict[str, int]:
    """Request -> the first group that has, or will have, spare slices for it; other requests are left out."""
    spare: dict[tuple[str, int, str], int] = {}
    for number, gpus in enumerate(groups):
        for gpu in gpus:
            for place in gpu.spare:
                if gpu.drain is not None and place in gpu.drain.places:
                    continue
                key = place.profile.name, number, gpu.node
                spare[key] = spare.get(key, 0) + 1
    found = {}
    for ask in asks:
        for (profile, number, node), count in spare.items():
            if profile == ask.profile and count >= ask.count and ask.allows_node(node):
                spare[profile, number, node] -= ask.count
                found[ask.name] = number
                break
    return found


def _layout_key(gpu: PartitionedGpu) -> tuple[tuple[mig.Placement, ...], bool]:
    return gpu.layout, gpu.is_whole


def _set_aside(working_set: WorkingSet, asks: Iterable[SliceRequest]) -> list[SliceRequest]:
    """Set spare slices aside; returns the remaining requests. Drains for requests that are served now are ended."""
    left = working_set.set_aside(asks)
    broken = {gpu.drain.ask for gpu in working_set.gpus if gpu.drain and gpu.drain.is_broken}
    names = {ask.name for ask in left} - broken
    working_set.end_drains(lambda _gpu, drain: drain.ask not in names)
    return left


def _serve_request(working_set: WorkingSet, ask: SliceRequest) -> str | None:
    drained = [gpu for gpu in working_set.gpus if gpu.drain is not None and gpu.drain.ask == ask.name]
    if not all(gpu.is_idle and gpu.is_open and working_set.gate.admits_node(gpu.node) for gpu in drained):
        nodes = ", ".join(sorted({gpu.node for gpu in drained}))
        return f"waiting for pods that were asked to leave {nodes}"
    working_set.end_drains(lambda _gpu, drain: drain.ask == ask.name)
    return working_set.recut_for(ask)


def _request_drains(
    working_set: WorkingSet, group: Group, asks: Iterable[SliceRequest], waiting: dict[str, str]
) -> None:
    """Ask pods to leave for the requests that no re-cut serves."""
    drained = {gpu.drain.ask for gpu in working_set.gpus if gpu.drain}
    for ask in asks:
        if (
            ask.name in waiting
            and ask.name not in drained
            and (moved := draining.request_drain(working_set, group, ask))
        ):
            waiting[ask.name] = f"asked to leave: {', '.join(each.request.name for each in moved)}"
