"""What the GPUs of a MIGStrategy are to be cut into now: by its distribution, by what waits, by what is to come.

The GPUs are looked at as they will be when everything asked of them so far is done, so that a request that waits for
a cut under way is not cut for twice. In this order:

1. Spare instances are put aside for the requests that wait, oldest first: all of one pod on one node.
2. The distribution is laid out (`strategy.cut`): always where it is fixed; where it may follow demand, for new GPUs
   and when a rebalance is due, and then only if it would move a tenth of the memory units: less is not worth a cut.
3. For requests still without a place the cheapest re-cut is found (`recut.plan`). Slices that were busy for much of the
   time until now are the last to go. GPUs that the distribution leaves whole stay whole.
4. Where there is none, pods that consent are asked to make way (`draining`); the cut comes when they have left.
5. A preferred profile of which none is spare gets one, if it can be had from free units.

An instance in use is never touched, nor a GPU that is being cut. Nodes begin with a cut only as the gate lets them:
so many at a time. What was decided is stable: asked again with nothing changed, nothing changes.
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
    """What became of it."""

    gpus: tuple[PartitionedGpu, ...]
    """In the order given, as they are to be."""
    gate: Gate
    changed: frozenset[str]
    """UUIDs of GPUs that are to be cut anew."""
    waiting: Mapping[str, str]
    """Requests without a place, and why."""
    short: Mapping[str, int]
    """Instances of the distribution that no layout has room for."""


def decide_layouts(group: Group, asks: Sequence[SliceRequest], gate: Gate) -> Decision:
    """What the GPUs are to be cut into now."""
    working_set = WorkingSet(group, gate)
    left = _set_aside(working_set, (ask for ask in asks if ask.profile in group.geometry.profiles))
    under_way = {uid for gpu in working_set.gpus if gpu.drain for uid in gpu.drain.pods}
    working_set.set_aside(each.request for each in group.movable if each.uid in under_way)
    short = working_set.apply_distribution()
    left = _set_aside(working_set, left)
    if group.is_dynamic:
        drained = {gpu.drain.ask for gpu in working_set.gpus if gpu.drain}
        # Those for whom others make way come first: else who was moved might have his old place back.
        left.sort(key=lambda ask: ask.name not in drained)
        waiting = {ask.name: why for ask in left if (why := _serve_request(working_set, ask)) is not None}
        if group.may_drain:
            _request_drains(working_set, group, left, waiting)
        for profile in group.preferred:
            working_set.warm_up(profile)
    else:
        working_set.end_drains(lambda _gpu, _drain: True)
        waiting = {ask.name: f"no {ask.profile} is spare, and the distribution is fixed" for ask in left}
    changed = {new.uuid for old, new in zip(group.gpus, working_set.gpus, strict=True) if _shape(old) != _shape(new)}
    return Decision(working_set.gpus, working_set.gate, frozenset(changed), waiting, short)


def assign_groups(groups: Sequence[Sequence[PartitionedGpu]], asks: Iterable[SliceRequest]) -> dict[str, int]:
    """Request -> the first of several groups that has spare instances for it, or will have; the others are left out."""
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


def _shape(gpu: PartitionedGpu) -> tuple[tuple[mig.Placement, ...], bool]:
    return gpu.layout, gpu.is_whole


def _set_aside(working_set: WorkingSet, asks: Iterable[SliceRequest]) -> list[SliceRequest]:
    """Who is left when spare instances are put aside. Nobody has to make way for the others, nor in vain."""
    left = working_set.set_aside(asks)
    broken = {gpu.drain.ask for gpu in working_set.gpus if gpu.drain and gpu.drain.is_broken}
    names = {ask.name for ask in left} - broken
    working_set.end_drains(lambda _gpu, drain: drain.ask not in names)
    return left


def _serve_request(working_set: WorkingSet, ask: SliceRequest) -> str | None:
    drained = [gpu for gpu in working_set.gpus if gpu.drain is not None and gpu.drain.ask == ask.name]
    if not all(gpu.is_idle and gpu.is_open and working_set.gate.admits(gpu.node) for gpu in drained):
        nodes = ", ".join(sorted({gpu.node for gpu in drained}))
        return f"pods that consent are asked to make way on {nodes}"
    working_set.end_drains(lambda _gpu, drain: drain.ask == ask.name)
    return working_set.recut_for(ask)


def _request_drains(
    working_set: WorkingSet, group: Group, asks: Iterable[SliceRequest], waiting: dict[str, str]
) -> None:
    """Others are asked to leave for those whom no cut serves, when all have been served that one does."""
    drained = {gpu.drain.ask for gpu in working_set.gpus if gpu.drain}
    for ask in asks:
        if (
            ask.name in waiting
            and ask.name not in drained
            and (moved := draining.request_drain(working_set, group, ask))
        ):
            waiting[ask.name] = f"{', '.join(each.request.name for each in moved)}: asked to make way"
