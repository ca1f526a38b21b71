"""The status of a GPUBudget as the cost engine writes it, and the alerts that are due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.apps.cost.budgets.figures import LONG_S, SHORT_S
from kgwe.costing import money
from kgwe.costing.budgets import alerts
from kgwe.costing.budgets.admission import format_amount
from kgwe.costing.budgets.periods import Period, find_period
from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe.gpubudget import (
    AlertRule,
    AlertSeverity,
    Breakdown,
    BudgetAlert,
    EnforcementPolicy,
    GPUBudgetStatus,
    SpendLine,
)
from kgwe.kube.api.meta import Condition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.apps.cost.budgets.figures import Figures
    from kgwe.cluster.budgets.rules import BudgetProblem, BudgetRule
    from kgwe.costing.segments import Account
    from kgwe.kube.api.kgwe.gpubudget import GPUBudget, GPUBudgetSpec

#: condition types
READY: Final = "Ready"
EXCEEDED: Final = "Exceeded"
BURNING: Final = "BurningFast"
OVERLAPPING: Final = "Overlapping"
_LARGEST: Final = 10
_PERCENT: Final = 100
# A status is written when the spend has grown by this part of the limit, or this long after the last one.
_STEP: Final = 0.001
_MOST_AGE_S: Final = 600
# Shorter windows say little about how fast a budget is used.
_LEAST_WINDOW_S: Final = 600


@dataclass(frozen=True, slots=True)
class Alert:
    """Something to notify people about."""

    kind: str
    severity: str
    title: str
    text: str
    key: str


def build_status(
    obj: GPUBudget,
    rule: BudgetRule,
    figures: Figures,
    until_s: int,
    *,
    overlaps: Sequence[str] = (),
) -> tuple[GPUBudgetStatus, list[Alert]]:
    """Return the new status and the alerts that became due with it. What the scheduler writes is left alone."""
    budget, old = rule.budget, obj.status
    period = find_period(budget.length, budget.zone, until_s)
    share = figures.spent / budget.limit_ticks
    rules = list_alerts(obj.spec)
    before = _read_state(old)
    state, crossed = alerts.advance_alerts(before, period, share, [each.threshold for each in rules], until_s)
    projection = alerts.project_spend(
        float(figures.spent), float(_parse_ticks(old.encumbered)), figures.days, period.end_s - until_s
    )
    ran_s = until_s - period.start_s
    short = alerts.compute_burn_rate(figures.last_hour / budget.limit_ticks, min(SHORT_S, ran_s), period)
    long = alerts.compute_burn_rate(figures.last_hours / budget.limit_ticks, min(LONG_S, ran_s), period)
    is_burning = ran_s >= _LEAST_WINDOW_S and share < 1 and alerts.is_burning(short, long)
    status = GPUBudgetStatus(
        currentSpend=_decimal(figures.spent),
        spendUntil=timestamp.format_time(until_s),
        utilizationPercent=round(share * _PERCENT, 2),
        encumbered=old.encumbered,
        projectedSpend=_decimal(projection.expected, 2),
        projectedLow="" if projection.lower is None else _decimal(projection.lower, 2),
        projectedHigh="" if projection.upper is None else _decimal(projection.upper, 2),
        burnRate=round(short, 2),
        waitingWorkloads=old.waitingWorkloads,
        periodStart=timestamp.format_time(period.start_s),
        periodEnd=timestamp.format_time(period.end_s),
        alerts=_list_fired(old, state, crossed, until_s, is_same=before is not None and before.period == period),
        exceededSince=None if state.exceeded_since_s is None else timestamp.format_time(state.exceeded_since_s),
        enforcementActive=old.enforcementActive,
        breakdown=_break_down(figures),
        observedGeneration=obj.metadata.generation,
        conditions=_set_conditions(
            obj,
            until_s,
            _describe_conditions(rule, figures, is_burning=is_burning, short=short, overlaps=overlaps),
        ),
    )
    due = [_threshold_alert(obj, rule, figures, each, period) for each in rules if each.threshold in crossed]
    if is_burning and not _is_set(old, BURNING):
        due.append(_burning_alert(obj, rule, short, period))
    return status, due if obj.spec.alertsEnabled else []


def build_problem_status(obj: GPUBudget, problem: BudgetProblem, now_s: int) -> GPUBudgetStatus:
    """Return the status of a budget without effect."""
    found = {READY: (False, problem.reason, problem.message)}
    return GPUBudgetStatus(observedGeneration=obj.metadata.generation, conditions=_set_conditions(obj, now_s, found))


def is_due(old: GPUBudgetStatus, new: GPUBudgetStatus, limit_ticks: int) -> bool:
    """Whether the new status is worth a write: one per change above a step, and not one per count."""
    quiet = {"currentSpend", "spendUntil", "utilizationPercent", "projectedSpend", "projectedLow", "projectedHigh"}
    quiet |= {"burnRate", "breakdown"}
    names = [name for name in GPUBudgetStatus.__struct_fields__ if name not in quiet]
    if any(getattr(old, name) != getattr(new, name) for name in names):
        return True
    grown = _parse_ticks(new.currentSpend) - _parse_ticks(old.currentSpend)
    if not old.spendUntil or abs(grown) >= limit_ticks * _STEP:
        return True
    age_s = timestamp.epoch_seconds(new.spendUntil or "") - timestamp.epoch_seconds(old.spendUntil)
    return age_s >= _MOST_AGE_S and (grown != 0 or old.projectedSpend != new.projectedSpend)


def list_alerts(spec: GPUBudgetSpec) -> list[AlertRule]:
    """Return the thresholds with their severities, lowest first."""
    if spec.alerts:
        return sorted(spec.alerts, key=lambda each: each.threshold)
    soft = spec.softLimitPercent / _PERCENT
    return [
        AlertRule(each, AlertSeverity.CRITICAL if each >= 1 else _severity_below(each, soft))
        for each in sorted(set(spec.alertThresholds))
    ]


def _severity_below(threshold: float, soft: float) -> str:
    return AlertSeverity.WARNING if threshold >= soft else AlertSeverity.INFO


def _read_state(old: GPUBudgetStatus) -> alerts.AlertState | None:
    try:
        start_s = int(timestamp.epoch_seconds(old.periodStart or ""))
        end_s = int(timestamp.epoch_seconds(old.periodEnd or ""))
        since_s = int(timestamp.epoch_seconds(old.exceededSince)) if old.exceededSince else None
    except (ValueError, OverflowError):
        return None
    if not start_s:
        return None
    fired = frozenset(each.threshold for each in old.alerts)
    return alerts.AlertState(Period(start_s, end_s), fired, since_s)


def _list_fired(
    old: GPUBudgetStatus, state: alerts.AlertState, crossed: Sequence[float], now_s: int, *, is_same: bool
) -> tuple[BudgetAlert, ...]:
    """Return the alerts of this period. Those that were acknowledged stay so, and are not raised again."""
    kept = [each for each in old.alerts if is_same and each.threshold in state.fired]
    return (*kept, *(BudgetAlert(each, timestamp.format_time(now_s)) for each in crossed))[:64]


def _describe_conditions(
    rule: BudgetRule, figures: Figures, *, is_burning: bool, short: float, overlaps: Sequence[str]
) -> dict[str, tuple[bool, str, str]]:
    budget = rule.budget
    used = f"{format_amount(figures.spent, budget.measure)} of {format_amount(budget.limit_ticks, budget.measure)}"
    is_over = figures.spent > budget.limit_ticks
    found = {
        # The numbers change all the time; the status has them.
        READY: (True, "Counting", "Spend is counted."),
        EXCEEDED: (
            is_over,
            "LimitExceeded" if is_over else "WithinLimit",
            f"{used} were spent in this period." if is_over else "The spend is within the limit.",
        ),
        BURNING: (
            is_burning,
            "TooFast" if is_burning else "AsPlanned",
            f"The last hours used the budget {short:.1f} times as fast as it lasts." if is_burning else "",
        ),
    }
    if overlaps:
        others = ", ".join(overlaps[:5])
        message = f"Budget {others} limits the same spend; the stricter answer counts. Delete one of them."
        found[OVERLAPPING] = (True, "SameScope", message)
    return found


def _set_conditions(obj: GPUBudget, now_s: int, verdicts: dict[str, tuple[bool, str, str]]) -> tuple[Condition, ...]:
    before = {each.type: each for each in obj.status.conditions}
    found = []
    for kind, (is_so, reason, message) in verdicts.items():
        value = "True" if is_so else "False"
        old = before.get(kind)
        is_same = old is not None and old.status == value
        since = old.lastTransitionTime if old is not None and is_same else timestamp.format_time(now_s)
        # Only the amount in the message of an exceeded budget changes: it is not worth a write.
        is_kept = old is not None and is_same and kind in {EXCEEDED, BURNING} and old.reason == reason
        words = old.message if old is not None and is_kept else message
        found.append(Condition(kind, value, reason, words, since, obj.metadata.generation))
    return tuple(found)


def _is_set(status: GPUBudgetStatus, kind: str) -> bool:
    return any(each.type == kind and each.status == "True" for each in status.conditions)


def _break_down(figures: Figures) -> Breakdown:
    return Breakdown(
        _largest(figures, lambda account: account.namespace),
        _largest(figures, lambda account: account.team),
        _largest(figures, lambda account: account.project),
    )


def _largest(figures: Figures, name: Callable[[Account], str]) -> tuple[SpendLine, ...]:
    sums: dict[str, int] = {}
    for line in figures.lines:
        sums[name(line.account)] = sums.get(name(line.account), 0) + line.ticks
    order = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return tuple(SpendLine(key, _decimal(ticks)) for key, ticks in order[:_LARGEST])


def _threshold_alert(obj: GPUBudget, rule: BudgetRule, figures: Figures, alert: AlertRule, period: Period) -> Alert:
    budget = rule.budget
    used, limit = format_amount(figures.spent, budget.measure), format_amount(budget.limit_ticks, budget.measure)
    percent = f"{alert.threshold * _PERCENT:g} %"
    text = (
        f"{used} of {limit} are spent in the period from {timestamp.format_time(period.start_s)} to "
        f"{timestamp.format_time(period.end_s)}. {_describe_policy(obj.spec.enforcementPolicy)}"
    )
    is_over = alert.threshold >= 1
    return Alert(
        "BudgetExceeded" if is_over else "BudgetThreshold",
        alert.severity,
        f"Budget {rule.key} has reached {percent} of {limit}",
        text,
        f"Budget/{rule.uid}/{period.start_s}/{alert.threshold:g}",
    )


def _burning_alert(obj: GPUBudget, rule: BudgetRule, short: float, period: Period) -> Alert:
    left = format_amount(rule.budget.limit_ticks, rule.budget.measure)
    return Alert(
        "BudgetBurning",
        AlertSeverity.WARNING,
        f"Budget {rule.key} is used up {short:.1f} times as fast as it lasts",
        f"At the rate of the last hours the limit of {left} is reached before {timestamp.format_time(period.end_s)}. "
        f"{_describe_policy(obj.spec.enforcementPolicy)}",
        f"Budget/{rule.uid}/{period.start_s}/burning",
    )


def _describe_policy(policy: str) -> str:
    if policy == EnforcementPolicy.BLOCK:
        return "New workloads that do not fit into the budget wait."
    if policy == EnforcementPolicy.THROTTLE:
        return "Above the soft limit new workloads start after all others."
    return "Nothing is held back: the policy is Alert."


def _decimal(ticks: float, digits: int = 6) -> str:
    micros = money.round_ticks(round(ticks))
    return money.format_dollars(micros, digits).replace(",", "")


def _parse_ticks(text: str) -> int:
    try:
        return money.parse_dollars(text) * money.TICKS if text else 0
    except errors.KgweError:
        return 0


def encode_patch(status: GPUBudgetStatus) -> dict[str, object]:
    """Return the merge patch of the fields that the cost engine writes; absent ones are removed."""
    ours = {name for name in GPUBudgetStatus.__struct_fields__ if name not in _OF_SCHEDULER}
    body = msgspec.to_builtins(status)
    return {"status": {name: body.get(name) for name in sorted(ours)}}


_OF_SCHEDULER: Final = frozenset({"encumbered", "enforcementActive", "waitingWorkloads"})
