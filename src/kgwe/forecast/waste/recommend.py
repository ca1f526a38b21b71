"""One recommendation per pod, with the money it saves and how certain it is.

The alternatives of a pod exclude each other, so a pod has one recommendation and its saving counts once. Costs are
allocation costs: devices x part of a GPU x price per GPU-hour. Without a price there is no money figure, but the saved
part is known where the GPU model stays the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.forecast.waste import gpu_parts
from kgwe.forecast.waste.alternatives import Action, find_memory_need, list_alternatives
from kgwe.forecast.waste.states import State
from kgwe.model.units import phrasing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kgwe.forecast.waste.alternatives import Alternative, Needs
    from kgwe.forecast.waste.rules import Rules
    from kgwe.forecast.waste.verdicts import Verdict
    from kgwe.model.usage.window import PodKey

    #: Whether the cluster has room for an alternative; None: unknown.
    Fits = Callable[[Alternative], bool | None]

HOURS_PER_MONTH: Final = 730.0
# Advice that the engine could not check.
_UNCHECKED: Final = 0.6
# Advice from the judged window alone.
_WITHOUT_HISTORY: Final = 0.6
# Advice for a pod whose memory need is unknown.
_PREALLOCATOR: Final = 0.5


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices per GPU-hour by GPU model. A model may have any of its names: short name, product or label."""

    on_demand: Mapping[str, float]
    spot: Mapping[str, float]

    def find(self, model: str, *, is_spot: bool) -> float | None:
        """Return the price of a GPU-hour; None if it is unknown."""
        table = self.spot if is_spot else self.on_demand
        known = gpu_parts.find_model(model)
        names = (model, known.name, known.product, known.label) if known else (model,)
        return next((table[name] for name in names if name in table), None)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to do about a pod."""

    pod: PodKey
    action: Action
    alternative: Alternative | None = None
    hourly_cost: float | None = None
    """Of the pod today. None: no price is known."""
    hourly_saving: float | None = None
    saved_share: float | None = None
    """0..1 of today's cost."""
    confidence: float = 0.0
    """0..1."""
    is_feasible: bool | None = None
    """Whether the engine found room. None: it was not asked or does not know."""
    is_advice_only: bool = False
    """Never applied automatically and not in sums: the memory need is unknown."""
    reasons: tuple[str, ...] = ()

    @property
    def monthly_saving(self) -> float | None:
        """Return the saving if the pod would have run for a whole month."""
        return None if self.hourly_saving is None else self.hourly_saving * HOURS_PER_MONTH


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over recommendations."""

    recommendations: int
    hourly_saving: float
    monthly_saving: float
    unpriced: int
    """Recommendations without a money figure."""
    advice_only: int


def recommend(verdict: Verdict, needs: Needs, prices: Prices, rules: Rules, fits: Fits) -> Recommendation:
    """Return the best alternative that fits, or `Action.NONE` with the reason."""
    case = _Case(verdict, needs, prices, rules)
    options = [option for each in list_alternatives(verdict, needs, rules) if (option := case.price(each))]
    good = [option for option in options if option.saved_share >= rules.min_saving_share]
    refused: list[str] = []
    for option in sorted(good, key=lambda each: (-each.value, str(each.alternative))):
        # Suspending frees capacity: there is always room for it.
        is_feasible = option.alternative.action is Action.SUSPEND or fits(option.alternative)
        if is_feasible is not False:
            return case.accept(option, is_feasible=is_feasible, refused=refused)
        refused.append(f"no room for {option.alternative}")
    reasons = (*case.explain_none(), *refused)
    return Recommendation(verdict.pod, Action.NONE, hourly_cost=case.cost, confidence=1.0, reasons=reasons)


def sum_savings(recommendations: Iterable[Recommendation]) -> Totals:
    """Return the sums. A pod counts once, advice without a known memory need not at all."""
    by_pod = {each.pod: each for each in recommendations if each.action is not Action.NONE}
    counted = [each for each in by_pod.values() if not each.is_advice_only]
    hourly = math.fsum(each.hourly_saving for each in counted if each.hourly_saving is not None)
    return Totals(
        recommendations=len(by_pod),
        hourly_saving=hourly,
        monthly_saving=hourly * HOURS_PER_MONTH,
        unpriced=sum(each.hourly_saving is None for each in counted),
        advice_only=len(by_pod) - len(counted),
    )


@dataclass(frozen=True, slots=True)
class _Option:
    """An alternative with its saving."""

    alternative: Alternative
    saved_share: float
    hourly_saving: float | None
    confidence: float

    @property
    def value(self) -> float:
        return self.saved_share * self.confidence


@dataclass(frozen=True, slots=True)
class _Case:
    """A pod for which a recommendation is made."""

    verdict: Verdict
    needs: Needs
    prices: Prices
    rules: Rules

    @property
    def cost(self) -> float | None:
        """Return what the pod costs per hour; None if no price is known."""
        price = self.prices.find(self.verdict.model, is_spot=self.needs.is_spot)
        return None if price is None else self.verdict.devices * self.verdict.fraction * price

    def price(self, alternative: Alternative) -> _Option | None:
        """Return the alternative with its saving; None if the saving is unknown."""
        confidence = self._find_confidence(alternative)
        old, new = self.cost, self._find_new_cost(alternative)
        if old and new is not None:
            return _Option(alternative, (old - new) / old, old - new, confidence)
        if alternative.model != self.verdict.model or alternative.action is Action.SPOT:
            return None
        parts = alternative.devices * alternative.fraction
        saved = 1.0 - parts / (self.verdict.devices * self.verdict.fraction)
        return _Option(alternative, saved, None, confidence)

    def _find_new_cost(self, alternative: Alternative) -> float | None:
        if alternative.action is Action.SUSPEND:
            return 0.0
        price = self.prices.find(alternative.model, is_spot=self.needs.is_spot or alternative.is_spot)
        return None if price is None else alternative.devices * alternative.fraction * price

    def _find_confidence(self, alternative: Alternative) -> float:
        """Return certainty x coverage x history. Idleness and spot prices need no history."""
        known = alternative.certainty * self.verdict.coverage
        if not alternative.changes_size:
            return known
        history = min(self.needs.history_s / self.rules.lookback_s, 1.0)
        known *= _WITHOUT_HISTORY + (1.0 - _WITHOUT_HISTORY) * history
        return known * _PREALLOCATOR if self.needs.is_preallocator else known

    def accept(self, option: _Option, *, is_feasible: bool | None, refused: list[str]) -> Recommendation:
        """Return the recommendation of an option."""
        alternative = option.alternative
        return Recommendation(
            self.verdict.pod,
            alternative.action,
            alternative,
            self.cost,
            option.hourly_saving,
            option.saved_share,
            round(option.confidence * (_UNCHECKED if is_feasible is None else 1.0), 3),
            is_feasible,
            is_advice_only=alternative.changes_size and self.needs.is_preallocator,
            reasons=(*self._explain(alternative, is_feasible=is_feasible), *refused),
        )

    def _explain(self, alternative: Alternative, *, is_feasible: bool | None) -> list[str]:
        verdict = self.verdict
        found = [f"state {verdict.state}, activity {100 * (verdict.activity or 0):.0f} % on average"]
        if alternative.changes_size:
            found.append(f"activity at most {100 * (verdict.p95 or 0):.0f} % in 95 % of the time")
            found.append(self._explain_memory())
        elif alternative.action is Action.SUSPEND and verdict.is_corroborated:
            found.append("power agrees")
        if is_feasible is None:
            found.append("room in the cluster is not known")
        return found

    def _explain_memory(self) -> str:
        if self.needs.is_preallocator:
            return "it takes all memory that it finds, so its memory need is unknown: try it first"
        used = max(each for each in (self.verdict.memory_peak_mib, self.needs.memory_mib) if each is not None)
        return f"at most {phrasing.format_mib(round(used))} of memory used"

    def explain_none(self) -> list[str]:
        """Return why there is no alternative."""
        verdict = self.verdict
        if verdict.state is State.UNKNOWN:
            return [f"its state is unknown: {verdict.reason}"]
        if verdict.is_unbalanced:
            return ["a part of the workload is idle while the rest works: look for a mistake in it first"]
        if verdict.is_shared and not verdict.state.is_idle:
            return ["it already shares its GPU"]
        if not verdict.is_underused and not verdict.state.is_idle:
            return ["its devices are used"]
        if find_memory_need(verdict, self.needs, self.rules) is None:
            return ["its memory use is unknown"]
        return ["nothing smaller is large enough or cheaper"]
