"""Parts that all explanations have: seats and their problems, conditions, and sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from kgwe.apps.whatif.explanation import Explanation, Placed, Seat, Word
from kgwe.model.units.phrasing import end_sentence, list_names
from kgwe.placement.fleet.snapshot import list_gpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kgwe.cluster.offline import View
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api.meta import Condition
    from kgwe.placement.planning.plan import Plan
    from kgwe.placement.planning.plan import Seat as PlannedSeat

# Nodes that a summary of a running workload names.
_NAMED: Final = 16
_PROGRAMS: Final = ("kube-", "kubectl", "kgwe")


def describe_seat(view: View, seat: PlannedSeat, pod: str = "", phase: str = "") -> Seat:
    known = view.state.reader.cards(seat.node)
    cards = tuple(list_gpus(seat.gpus))
    gpus = tuple(known.uuids[card] for card in cards if card in known.uuids)
    gpus += tuple(known.slices[each][1] for each in seat.slices if each in known.slices)
    return Seat(seat.node, cards, gpus, pod, phase)


def name_nodes(seats: Iterable[Seat]) -> str:
    """Names of the nodes; of many, the first few and how many more."""
    return list_names(list(dict.fromkeys(seat.node for seat in seats)), _NAMED) or "no node"


def find_seat_problems(view: View, seats: Iterable[Seat]) -> Iterator[str]:
    cards: dict[str, list[int]] = {}
    for seat in seats:
        cards.setdefault(seat.node, []).extend(seat.cards)
    for name, mine in cards.items():
        fault = view.state.reader.find_fault(name)
        if fault is not None:
            yield f"node {name} is {fault.value}"
        sick = view.state.reader.unhealthy_gpus(name)
        hit = [card for card in mine if sick >> card & 1]
        if hit:
            many = "GPUs" if len(hit) > 1 else "GPU"
            verb = "are" if len(hit) > 1 else "is"
            yield f"{many} {', '.join(map(str, hit))} on node {name} {verb} unhealthy"


def describe_plan(view: View, plan: Plan) -> Placed:
    """A plan as a place."""
    seats = tuple(describe_seat(view, seat) for seat in plan.seats)
    domain = f"{plan.level}/{plan.domain}" if plan.level else ""
    rate = None if plan.gb_per_s in (None, float("inf")) else plan.gb_per_s
    return Placed(seats, domain, plan.score, dict(plan.parts), rate, tuple(plan.message.splitlines()))


def words_of(conditions: Iterable[Condition]) -> Iterator[Word]:
    """The conditions of an object that have a reason or message."""
    for each in (condition for condition in conditions if condition.reason or condition.message):
        yield Word(each.type, each.status, each.reason, each.message, each.lastTransitionTime or "")


def words_of_advice(workload: Workload) -> Iterator[Word]:
    """What the optimizer found about its GPUs."""
    if (found := workload.status.optimization) is not None:
        yield Word("GPUUnderused", "True", found.finding, found.message, found.since or "")


def as_sentence(text: str) -> str:
    """The text with a capital letter and a full stop. Names of programs keep their spelling."""
    first = text[:1] if text.startswith(_PROGRAMS) else text[:1].upper()
    return end_sentence(first + text[1:])


def replace_fields(told: Explanation, **changes: object) -> Explanation:
    return msgspec.structs.replace(told, **changes)
