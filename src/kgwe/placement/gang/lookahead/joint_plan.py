"""Plans all waiting gangs together, so that the place of each takes the others into account.

Several plans are made. Each begins with a different arrangement and is improved by a bounded search (`arrangement`):

    by turns    each gang in its turn by the quick rule, on nodes with the least room first
    largest     every gang that fits in addition to earlier ones, the largest pods first; small pods avoid whole nodes
    best fit    the gangs that the published best-fit rule places, on nodes with the least room first; and on the
                fewest nodes if that rule places more gangs than "by turns", or uses fewer leaves per gang

The order in which gangs start stays the same. So a plan is judged by a simulation of the turns (`_simulate_turns`): a
gang without a planned place, or whose place is taken, is placed by the quick rule. Only plans that start no fewer gangs
than best fit are considered, and the one with the fewest leaves wins. One more gang is worth `_LEAVES_PER_GANG`. Best
fit itself is one of the plans.

The result depends only on the free capacity and the waiting gangs, not on a clock or on chance. The number of steps is
bounded; on a large cluster there are fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.placement.gang.lookahead import quick_fit
from kgwe.placement.gang.lookahead.arrangement import Arrangement
from kgwe.placement.gang.lookahead.best_fit import BestFit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.placement.gang.lookahead.free_capacity import FreeCapacity, Parts
    from kgwe.placement.gang.lookahead.quick_fit import GangDemand, Scopes

    Rule = Callable[[FreeCapacity, GangDemand], Parts | None]

# Steps of the search for each plan, and steps times (leaves + gangs).
_MAX_STEPS: Final = 400
_MAX_VISITS: Final = 60_000
# The start of one more gang is worth so many leaves.
_LEAVES_PER_GANG: Final = 4


@dataclass(frozen=True, slots=True)
class JointPlan:
    """The places of all waiting gangs."""

    parts: tuple[Parts | None, ...]
    """The place of each gang; None: it finds no room."""
    tight: bool
    """Whether pods fill the nodes with the least room first, instead of using the fewest nodes."""

    @property
    def placed(self) -> int:
        return sum(each is not None for each in self.parts)

    @property
    def leaves(self) -> int:
        return sum(len(each) for each in self.parts if each is not None)

    @property
    def leaves_per_gang(self) -> float:
        """Leaves per gang."""
        return self.leaves / max(self.placed, 1)

    @property
    def price(self) -> tuple[int, int]:
        """The sort key: the smallest is the best."""
        return self.leaves - _LEAVES_PER_GANG * self.placed, -self.placed

    def describe(self) -> str:
        found = "all fit" if self.placed == len(self.parts) else f"{self.placed} fit"
        return f"planned together with all {len(self.parts)} waiting gangs: {found}, {self.leaves} leaves in total"


def plan_together(capacity: FreeCapacity, gangs: Sequence[GangDemand], levels: Scopes) -> JointPlan:
    """The best plan for gangs in the order of their turns; `levels`: as in `BestFit`."""
    nothing: list[Parts | None] = [None] * len(gangs)
    best_fit = JointPlan(
        _simulate_turns(capacity, gangs, nothing, tight=False, rule=BestFit(levels).place_gang), tight=False
    )
    by_turns = _improve_plan(capacity, gangs, _simulate_turns(capacity, gangs, nothing, tight=True), tight=True)
    largest = _improve_plan(capacity, gangs, _place_largest_first(capacity, gangs), tight=True, spares=True)
    plans = [best_fit, by_turns, largest, _improve_plan(capacity, gangs, best_fit.parts, tight=True)]
    chosen = _choose_plan(plans)
    if by_turns.placed < best_fit.placed or chosen.leaves_per_gang > best_fit.leaves_per_gang:
        chosen = _choose_plan([*plans, _improve_plan(capacity, gangs, best_fit.parts, tight=False)])
    return chosen


def _choose_plan(plans: Sequence[JointPlan]) -> JointPlan:
    """The best of the plans that start no fewer gangs than the first one, which is best fit."""
    return min((plan for plan in plans if plan.placed >= plans[0].placed), key=lambda plan: plan.price)


def _simulate_turns(
    capacity: FreeCapacity,
    gangs: Sequence[GangDemand],
    intended: Sequence[Parts | None],
    *,
    tight: bool,
    rule: Rule = quick_fit.place_gang,
) -> tuple[Parts | None, ...]:
    """The place of each gang in its turn: the intended one if it is free, else one by the rule."""
    trial = capacity.copy()
    found: list[Parts | None] = []
    for gang, parts in zip(gangs, intended, strict=True):
        room = trial.room[gang.kind]
        # A gang that fits one leaf is not split over several.
        is_needless = parts is not None and len(parts) > 1 and max(room, default=0) >= gang.pods
        if parts is None or is_needless or any(room[leaf] < pods for leaf, pods in parts):
            parts = rule(trial, gang)  # noqa: PLW2901 -- replaces the intended place
        if parts is not None:
            trial.place_pods(gang.kind, parts, tight=tight)
        found.append(parts)
    return tuple(found)


def _improve_plan(
    capacity: FreeCapacity,
    gangs: Sequence[GangDemand],
    start: Sequence[Parts | None],
    *,
    tight: bool,
    spares: bool = False,
) -> JointPlan:
    arrangement = Arrangement(capacity, gangs, tight=tight, spares=spares)
    for number, parts in enumerate(start):
        if parts is not None:
            arrangement.set_place(number, parts)
    arrangement.improve(min(_MAX_STEPS, _MAX_VISITS // (len(capacity.states) + len(gangs))))
    return JointPlan(
        _simulate_turns(capacity, gangs, _sort_by_leaves(gangs, arrangement.parts), tight=tight), tight=tight
    )


def _sort_by_leaves(gangs: Sequence[GangDemand], parts: Sequence[Parts | None]) -> list[Parts | None]:
    """The same places, sorted among equal gangs: the first gets the place with the fewest leaves."""
    found = list(parts)
    for gang in dict.fromkeys(gangs):
        alike = [number for number, each in enumerate(gangs) if each is gang and parts[number] is not None]
        places = sorted((parts[number] or () for number in alike), key=len)
        for number, place in zip(alike, places, strict=True):
            found[number] = place
    return found


def _place_largest_first(capacity: FreeCapacity, gangs: Sequence[GangDemand]) -> Sequence[Parts | None]:
    """Places of the gangs that fit, placed in the order of their pods, the largest first."""
    arrangement = Arrangement(capacity, gangs, tight=True, spares=True)
    gpus = capacity.leaf_states.gpus_per_pod
    for number in sorted(_list_fitting_gangs(capacity, gangs), key=lambda n: (-gpus[gangs[n].kind], -gangs[n].pods, n)):
        arrangement.place_gang(number)
    return arrangement.parts


def _list_fitting_gangs(capacity: FreeCapacity, gangs: Sequence[GangDemand]) -> list[int]:
    """Numbers of the gangs that fit in addition to those accepted before, regardless of leaves."""
    merged = capacity.merge_leaves()
    counts = [0] * len(capacity.leaf_states.gpus_per_pod)
    accepted = []
    for number, gang in enumerate(gangs):
        counts[gang.kind] += gang.pods
        if capacity.leaf_states.fill_leaf(merged, tuple(counts), tight=True) is not None:
            accepted.append(number)
        else:
            counts[gang.kind] -= gang.pods
    return accepted
