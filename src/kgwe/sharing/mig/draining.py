"""Which pods are asked to leave so that a GPU can be partitioned for a waiting request.

    nothing spare, no re-cut ──► fewest memory units whose users consent ──► each finds another place? ──► asked

Every move is tried on a copy first: after the cut, each moved pod must have slices again, spare ones or such as can be
cut without moving another pod. Pods without such slices are left alone, and another way is tried. No more memory units
are moved than are requested. So every move serves one more request than before, and moving comes to an end.

The GPU stays as it is, and only the slices concerned are withheld, until all asked pods have left; then it is cut like
any other. If they do not leave, the drain is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.sharing.mig.recut import Recut
from kgwe.sharing.mig.types import Drain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.gpu import mig
    from kgwe.sharing.mig.types import Group, MovablePod, SliceRequest
    from kgwe.sharing.mig.working_set import WorkingSet

# Sets of pods that are tried for one request.
_MOST_TRIES: Final = 8


def request_drain(working_set: WorkingSet, group: Group, ask: SliceRequest) -> tuple[MovablePod, ...]:
    """Mark drains for a request; returns the pods to move, none if that does not help."""
    asked = frozenset(uid for gpu in working_set.gpus if gpu.drain for uid in gpu.drain.pods)
    willing = [each for each in group.movable if each.uid not in asked and not each.is_leaving]
    most = group.geometry.profile(ask.profile).units * ask.count
    for _ in range(_MOST_TRIES):
        found = _find_cheapest(working_set, group, ask, _slices_by_gpu(willing)) if willing else None
        if found is None or found[1].vacated_units > most:
            return ()
        numbers, plan = found
        moved = _list_moved(working_set, numbers, plan, willing)
        homeless = _find_homeless(working_set, numbers, plan, moved)
        if not homeless:
            _mark_drains(working_set, ask, numbers, plan, moved)
            return moved
        willing = [each for each in willing if each not in homeless]
    return ()


def _slices_by_gpu(willing: Iterable[MovablePod]) -> dict[str, list[mig.Placement]]:
    found: dict[str, list[mig.Placement]] = {}
    for each in willing:
        for uuid, place in each.slices:
            found.setdefault(uuid, []).append(place)
    return found


def _find_cheapest(
    working_set: WorkingSet, group: Group, ask: SliceRequest, yielding: Mapping[str, Sequence[mig.Placement]]
) -> tuple[list[int], Recut] | None:
    """The node on which the fewest memory units have to be vacated; GPUs that change now are not drained as well."""
    found: list[tuple[int, int, list[int], Recut]] = []
    for candidates in working_set.list_candidates(ask):
        numbers = [number for number in candidates if working_set.gpus[number].layout == group.gpus[number].layout]
        plan = working_set.plan_with_yielding(numbers, ask, yielding)
        if isinstance(plan, Recut):
            found.append((plan.vacated_units, plan.destroyed, numbers, plan))
    best = min(found, key=lambda each: each[:2], default=None)
    return None if best is None else best[2:]


def _list_moved(
    working_set: WorkingSet, numbers: Sequence[int], plan: Recut, willing: Iterable[MovablePod]
) -> tuple[MovablePod, ...]:
    left = {(working_set.gpus[numbers[change.gpu]].uuid, place) for change in plan.changes for place in change.vacate}
    return tuple(each for each in willing if left.intersection(each.slices))


def _find_homeless(
    working_set: WorkingSet, numbers: Sequence[int], plan: Recut, moved: Sequence[MovablePod]
) -> list[MovablePod]:
    """Moved pods that would have no place afterwards."""
    trial = working_set.copy()
    for each in moved:
        trial.remove_pod(each)
    trial.apply(numbers, plan)
    return [each for each in moved if not trial.try_place(each.request)]


def _mark_drains(
    working_set: WorkingSet, ask: SliceRequest, numbers: Sequence[int], plan: Recut, moved: Sequence[MovablePod]
) -> None:
    for change in plan.changes:
        number = numbers[change.gpu]
        if change.vacate or change.destroy:
            uuid = working_set.gpus[number].uuid
            pods = {each.uid for each in moved if any((uuid, place) in each.slices for place in change.vacate)}
            # Spare slices that go with them are withheld too: a new pod in one would be in the way.
            working_set.start_drain(number, Drain(ask.name, frozenset(pods), (*change.vacate, *change.destroy)))
    # Reserve what the cut needs besides, and the slices the moved pods will use.
    working_set.freeze_gpus(numbers[change.gpu] for change in plan.changes)
    working_set.set_aside(each.request for each in moved)
