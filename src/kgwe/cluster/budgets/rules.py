"""What a GPUBudget says, read once for all processes. A budget that cannot be read has a problem, and no effect.

Budgets are written by cluster operators. Those that reach beyond their namespace count only in one namespace, so that a
namespace's administrator who may write budgets there limits no other namespace.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.cluster.names import SCHEDULER_LEASE_NAMESPACE
from kgwe.costing import money
from kgwe.costing.budgets.admission import Budget, Measure, Policy, Spend
from kgwe.costing.budgets.periods import PeriodLength
from kgwe.costing.budgets.scopes import BudgetScope
from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe import gpubudget

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.costing.attribution import AttributionRules
    from kgwe.kube.api.kgwe.gpubudget import GPUBudget

#: where budgets of teams, projects and organizations count
HOME: Final = SCHEDULER_LEASE_NAMESPACE
# More than all GPUs of the world cost in a month is a mistake.
_MOST_MICROS: Final = 10**12 * money.MICROS


@dataclass(frozen=True, slots=True)
class BudgetProblem:
    """Why a budget has no effect: one CamelCase word, and a sentence with what to do."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class BudgetRule:
    """A budget that counts."""

    key: str
    """namespace/name."""
    uid: str
    budget: Budget
    scope: BudgetScope
    suspends: bool = False
    grace_s: int = 0


def read_spend(status: gpubudget.GPUBudgetStatus) -> Spend:
    """Return what the cost engine has published; nothing if it has published nothing, or what cannot be read."""
    try:
        micros = money.parse_dollars(status.currentSpend or "0")
        return Spend(micros * money.TICKS, int(timestamp.epoch_seconds(status.spendUntil or "")))
    except (ValueError, OverflowError, errors.KgweError):
        return Spend(0, 0)


def read_rule(obj: GPUBudget, attribution: AttributionRules, currency: str = "USD") -> BudgetRule | BudgetProblem:
    """Return the rule of a budget, or why it has no effect."""
    spec, meta = obj.spec, obj.metadata
    if not spec.enabled:
        return BudgetProblem("Disabled", "enabled is false: the budget has no effect.")
    if spec.scope != gpubudget.Scope.NAMESPACE and meta.namespace != HOME:
        return BudgetProblem(
            "WrongNamespace",
            f"A budget with scope {spec.scope} counts only in namespace {HOME}, where cluster operators write. Create"
            f" it there, or use scope Namespace.",
        )
    is_hours = spec.unit == gpubudget.Unit.GPU_HOURS
    if not is_hours and spec.currency != currency:
        return BudgetProblem(
            "CurrencyMismatch",
            f"The limit is in {spec.currency}, but costs are counted in {currency}. Give the limit in {currency}.",
        )
    try:
        limit = money.parse_dollars(spec.limit)
    except errors.Permanent as exc:
        return BudgetProblem("InvalidLimit", f"limit: {exc}.")
    if not 0 < limit <= _MOST_MICROS:
        return BudgetProblem("InvalidLimit", f"limit {spec.limit} must be above 0 and at most {_MOST_MICROS // 10**6}.")
    zone = find_zone(spec.timeZone)
    if zone is None:
        return BudgetProblem(
            "UnknownTimeZone", f"timeZone {spec.timeZone} is not known. Use an IANA name such as UTC or Europe/Berlin."
        )
    scope = _read_scope(obj, attribution)
    if isinstance(scope, BudgetProblem):
        return scope
    return BudgetRule(
        meta.key,
        meta.uid,
        Budget(
            meta.key,
            limit,
            Measure.GPU_HOURS if is_hours else Measure.DOLLARS,
            PeriodLength(spec.period),
            zone,
            Policy(spec.enforcementPolicy),
            Fraction(max(min(spec.softLimitPercent, 100), 1), 100),
        ),
        scope,
        suspends=spec.onExceeded == gpubudget.OnExceeded.SUSPEND,
        grace_s=spec.gracePeriodMinutes * 60,
    )


def find_zone(name: str) -> dt.tzinfo | None:
    """Return a time zone by its IANA name; None if it is not known."""
    if name == "UTC":
        return dt.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _read_scope(obj: GPUBudget, attribution: AttributionRules) -> BudgetScope | BudgetProblem:
    spec = obj.spec
    names: dict[str, str] = {}
    keys = {key: name for name in _DIMENSIONS for key in getattr(attribution, name)}
    for key, value in sorted(spec.matchLabels.items()):
        name = keys.get(key)
        if name is None:
            known = ", ".join(getattr(attribution, each)[0] for each in _DIMENSIONS)
            return BudgetProblem(
                "UnknownLabel",
                f"matchLabels: costs are not attributed by label {key}. Use one of {known}, or add it to the labels of"
                " the cost engine and the scheduler.",
            )
        if names.setdefault(name, value) != value:
            return BudgetProblem("ContradictoryLabels", f"matchLabels names two values for {name}: no pod has both.")
    if spec.experimentId:
        names["experiment"] = spec.experimentId
    if spec.scope == gpubudget.Scope.NAMESPACE:
        names["namespace"] = obj.metadata.namespace
    elif spec.scope == gpubudget.Scope.TEAM:
        names["team"] = spec.teamId
    elif spec.scope == gpubudget.Scope.PROJECT:
        names["project"] = spec.projectId
    scope = BudgetScope(teams=frozenset(spec.teams), namespaces=frozenset(spec.namespaces))
    return replace(scope, **names)  # type: ignore[arg-type]  # all of them are texts


_DIMENSIONS: Final = ("team", "project", "cost_center", "experiment", "user")


def find_overlaps(rules: Iterable[BudgetRule]) -> Mapping[str, tuple[str, ...]]:
    """Return for each budget the others that limit the same spend in the same unit and period."""
    same: dict[object, list[str]] = {}
    for rule in rules:
        budget = rule.budget
        same.setdefault((rule.scope, budget.measure, budget.length), []).append(rule.key)
    return {
        key: tuple(sorted(other for other in keys if other != key))
        for keys in same.values()
        if len(keys) > 1
        for key in keys
    }
