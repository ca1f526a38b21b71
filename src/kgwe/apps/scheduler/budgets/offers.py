"""Cheaper shapes for a workload that a budget refused. The engine has planned each, and the budget would admit it.

spot           the same on spot nodes
smaller GPU    the same on a cheaper model
MIG            a slice instead of one whole GPU
later          the same in the next period
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kgwe.costing.budgets.admission import Measure, format_amount
from kgwe.placement.fleet.node import Gpus, SpotPolicy
from kgwe.placement.planning import planner
from kgwe.placement.planning.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kgwe.apps.scheduler.budgets.encumbrance_table import Admission
    from kgwe.apps.scheduler.budgets.gate import BudgetGate
    from kgwe.apps.scheduler.budgets.rates import RateSource
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.costing.budgets.admission import Decision
    from kgwe.costing.rates import HourlyRate
    from kgwe.placement.fleet.node import Node
    from kgwe.placement.planning.ask import Ask

# Offers take some plans each: larger asks get none, others not more often than this.
_MOST_PODS: Final = 64
_PAUSE_S: Final = 0.25
_KEEP_S: Final = 60.0
_MOST_MODELS: Final = 3
_MOST_KEPT: Final = 10_000


class OfferFinder:
    """Finds offers; what was found stays for a minute."""

    def __init__(self, state: ClusterState, rates: RateSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._rates = rates
        self._clock = clock
        self._found: dict[str, tuple[float, str]] = {}
        self._next_s = 0.0

    def find(self, ask: Ask, wanted: Admission, refused: Decision, gate: BudgetGate) -> str:
        """Return what the owner could do instead, as sentences; empty: nothing that helps is known."""
        now = self._clock()
        known = self._found.get(ask.owner)
        if known is not None and now < known[0] + _KEEP_S:
            return known[1]
        if now < self._next_s:
            return known[1] if known is not None else ""
        offers = list(self._try_all(ask, wanted, refused, gate))
        text = f"It could start with: {'; '.join(offers)}." if offers else ""
        if len(self._found) >= _MOST_KEPT:
            self._found.clear()
        self._found[ask.owner] = now, text
        self._next_s = self._clock() + _PAUSE_S
        return text

    def _try_all(self, ask: Ask, wanted: Admission, refused: Decision, gate: BudgetGate) -> Iterator[str]:
        if ask.gang is None and ask.pods <= _MOST_PODS:
            for words, other in self._list_shapes(ask, wanted):
                if (cost := self._check(other, wanted, gate)) is not None:
                    yield f"{words}, up to {cost}"
        if refused.retry_at_s is not None:
            later = gate.check(wanted, refused.retry_at_s)
            if later is not None and later.is_admitted:
                yield "a start in the next period"

    def _list_shapes(self, ask: Ask, wanted: Admission) -> Iterator[tuple[str, Ask]]:
        request, nodes = ask.request, self._state.fleet.snapshot.nodes
        if request.spot is not SpotPolicy.REQUIRE and any(node.spot for node in nodes):
            yield "spotPolicy: Require", replace(ask, request=replace(request, spot=SpotPolicy.REQUIRE))
        for model in self._list_cheaper(nodes, wanted, request.model):
            other = replace(request, model=model, architecture="", spot=request.spot)
            yield f"gpuModel: {model}", replace(ask, request=other)
        if request.gpus.count == 1 and ask.pods == 1:
            for profile in _list_profiles(nodes):
                other = replace(request, gpus=Gpus(profile=profile, slices=1))
                yield f"a MIG slice {profile}", replace(ask, request=other, divisible=False)

    def _list_cheaper(self, nodes: tuple[Node, ...], wanted: Admission, asked: str) -> list[str]:
        """Return other models, the cheapest first, whose GPUs cost less than those of the plan."""
        now_s = wanted.start_s
        rates: dict[str, int] = {}
        for number, node in enumerate(nodes):
            rate = self._rates.price_gpu(nodes, number, now_s)
            if rate is not None and node.shape.model != asked:
                rates[node.shape.model] = min(rate, rates.get(node.shape.model, rate))
        per_gpu = wanted.rate.micros * 10**6 // max(wanted.rate.gpu_micros, 1)
        cheaper = sorted((rate, model) for model, rate in rates.items() if model and rate < per_gpu)
        return [model for _, model in cheaper[:_MOST_MODELS]]

    def _check(self, ask: Ask, wanted: Admission, gate: BudgetGate) -> str | None:
        """Return the cost of another shape, if it has a place now and its budgets admit it."""
        fleet = self._state.fleet
        plan = planner.make_plan(fleet, ask, rng=random.Random(0), explain=False)  # noqa: S311 - guards nothing
        if not isinstance(plan, Plan):
            return None
        rate = self._price(plan, wanted.start_s)
        if not rate.is_priced or rate.micros >= wanted.rate.micros:
            return None
        other = replace(wanted, rate=rate)
        answer = gate.check(other)
        if answer is None or not answer.is_admitted:
            return None
        return format_amount(rate.micros * wanted.bounded.longest_s, Measure.DOLLARS)

    def _price(self, plan: Plan, now_s: int) -> HourlyRate:
        return self._rates.price(self._state.fleet.snapshot.nodes, plan.grants, now_s)


def _list_profiles(nodes: tuple[Node, ...]) -> list[str]:
    """Return the MIG profiles that nodes offer, the largest first."""
    found = {placed.profile for node in nodes for cut in node.cut.values() for placed in cut}
    return [each.name for each in sorted(found, key=lambda each: (-each.compute, -each.units))][:2]
