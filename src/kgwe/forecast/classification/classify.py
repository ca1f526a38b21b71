"""The class of a workload: which rules hold, what they say together, and whether that is enough for an answer.

Every rule that holds adds its weights to the classes. The weights are log odds: +1 makes a class 2.7 times as likely.
Probabilities follow from the sums. The answer is `Unknown` if no rule holds or no class is clearly ahead. There is no
labelled data to learn weights from: they are judgements, and every answer lists the rules behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.forecast.classification.kinds import WorkloadClass
from kgwe.forecast.classification.spec_rules import SPEC_RULES
from kgwe.forecast.classification.usage_rules import USAGE_RULES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.forecast.classification.usage import UsageSignature
    from kgwe.forecast.podfacts import PodFacts

#: Probability from which a class is the answer.
LEAST_PROBABILITY: Final = 0.5
#: And the lead over the second class.
LEAST_LEAD: Final = 0.15
CLASSES: Final[tuple[WorkloadClass, ...]] = tuple(kind for kind in WorkloadClass if kind is not WorkloadClass.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Reason:
    """A rule that held."""

    rule: str
    sentence: str
    weights: Mapping[WorkloadClass, float]


@dataclass(frozen=True, slots=True)
class Classification:
    """The class with everything behind it."""

    kind: WorkloadClass
    probabilities: Mapping[WorkloadClass, float]
    """Of every class except `Unknown`; they add up to 1."""
    reasons: tuple[Reason, ...]
    """The rules that held, the one that counts most for the answer first."""


def classify(facts: PodFacts | None = None, usage: UsageSignature | None = None) -> Classification:
    """Return the class of a workload from its spec, its usage, or both; None is unknown."""
    reasons = []
    if facts is not None:
        reasons += [Reason(rule.name, rule.sentence, rule.weights) for rule in SPEC_RULES if rule.holds(facts)]
    if usage is not None and usage.is_known:
        reasons += [Reason(rule.name, rule.sentence, rule.weights) for rule in USAGE_RULES if rule.holds(usage)]
    sums = {kind: sum(reason.weights.get(kind, 0.0) for reason in reasons) for kind in CLASSES}
    highest = max(sums.values())
    powers = {kind: math.exp(value - highest) for kind, value in sums.items()}
    total = sum(powers.values())
    probabilities = {kind: power / total for kind, power in powers.items()}
    first, second = sorted(probabilities.values(), reverse=True)[:2]
    best = max(CLASSES, key=probabilities.__getitem__)
    is_clear = bool(reasons) and first >= LEAST_PROBABILITY and first - second >= LEAST_LEAD
    kind = best if is_clear else WorkloadClass.UNKNOWN
    reasons.sort(key=lambda reason: -reason.weights.get(best, 0.0))
    return Classification(kind, probabilities, tuple(reasons))
