"""Who is asked to make way so that a card can be cut for somebody who waits, when there is no other way.

    nothing spare, no re-cut ──► fewest memory units whose users consent ──► each of them finds another place? ──► asked

Nobody is put out: it is tried on a copy first that, after the cut, everyone who was moved has slices again, spare ones
or such as can be cut without moving anybody else. Who has none is left alone, and another way is looked for. No more
memory units are moved than are asked for. So every move serves one more than before, and moving comes to an end.

The card stays as it is, and only the slices concerned are kept from others, until everybody has left who was asked to;
then it is cut like any other. If that does not come about, it is as if nobody had been asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.sharing.mig.recut import Recut
from kgwe.sharing.mig.types import Drain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.gpu import mig
    from kgwe.sharing.mig.types import Ask, Group, Movable
    from kgwe.sharing.mig.working_set import Workbench

# Sets of pods that are looked at for one request.
_MOST_TRIES: Final = 8


def begin(work: Workbench, group: Group, ask: Ask) -> tuple[Movable, ...]:
    """Ask pods to make way for a request; who they are, nobody where that does not help."""
    asked = frozenset(uid for card in work.cards if card.drain for uid in card.drain.pods)
    willing = [each for each in group.movable if each.uid not in asked and not each.is_leaving]
    most = group.geometry.profile(ask.profile).units * ask.count
    for _ in range(_MOST_TRIES):
        found = _cheapest(work, group, ask, _yielding(willing)) if willing else None
        if found is None or found[1].vacated_units > most:
            return ()
        numbers, plan = found
        moved = _who(work, numbers, plan, willing)
        homeless = _homeless(work, numbers, plan, moved)
        if not homeless:
            _ask(work, ask, numbers, plan, moved)
            return moved
        willing = [each for each in willing if each not in homeless]
    return ()


def _yielding(willing: Iterable[Movable]) -> dict[str, list[mig.Placement]]:
    found: dict[str, list[mig.Placement]] = {}
    for each in willing:
        for uuid, place in each.slices:
            found.setdefault(uuid, []).append(place)
    return found


def _cheapest(
    work: Workbench, group: Group, ask: Ask, yielding: Mapping[str, Sequence[mig.Placement]]
) -> tuple[list[int], Recut] | None:
    """Of all nodes the one on which the fewest memory units have to be left; cards that are to change now are not
    drained as well."""
    found: list[tuple[int, int, list[int], Recut]] = []
    for candidates in work.candidates(ask):
        numbers = [number for number in candidates if work.cards[number].layout == group.cards[number].layout]
        plan = work.plan_with(numbers, ask, yielding)
        if isinstance(plan, Recut):
            found.append((plan.vacated_units, plan.destroyed, numbers, plan))
    best = min(found, key=lambda each: each[:2], default=None)
    return None if best is None else best[2:]


def _who(work: Workbench, numbers: Sequence[int], plan: Recut, willing: Iterable[Movable]) -> tuple[Movable, ...]:
    left = {(work.cards[numbers[change.card]].uuid, place) for change in plan.changes for place in change.vacate}
    return tuple(each for each in willing if left.intersection(each.slices))


def _homeless(work: Workbench, numbers: Sequence[int], plan: Recut, moved: Sequence[Movable]) -> list[Movable]:
    """Those who would have no place when it is done."""
    trial = work.copy()
    for each in moved:
        trial.vacate(each)
    trial.apply(numbers, plan)
    return [each for each in moved if not trial.finds_place(each.home)]


def _ask(work: Workbench, ask: Ask, numbers: Sequence[int], plan: Recut, moved: Sequence[Movable]) -> None:
    for change in plan.changes:
        number = numbers[change.card]
        if change.vacate or change.destroy:
            uuid = work.cards[number].uuid
            pods = {each.uid for each in moved if any((uuid, place) in each.slices for place in change.vacate)}
            # Spare ones that have to go with them are kept, too: whoever came to have one would be in the way.
            work.drain(number, Drain(ask.name, frozenset(pods), (*change.vacate, *change.destroy)))
    # What the cut will need besides, and where they will go, is nobody else's now.
    work.freeze(numbers[change.card] for change in plan.changes)
    work.put_aside(each.home for each in moved)
