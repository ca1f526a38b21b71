"""The gate of budgets: which workloads wait because of money, which come last, and what admitted ones encumber.

A workload passes twice. Before it is queued (`review`), it is refused if its budget is used up, or if it was refused
before and nothing has changed for it. When it gets its place (`admit`), its cost is known: it is encumbered in the same
moment, on the event loop, so that the next workload sees less money.

The cost engine publishes spend. While it is down, the last spend and the encumbrances since decide.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.apps.scheduler.budgets.accounts import AccountDirectory
from kgwe.apps.scheduler.budgets.durations import Durations, estimate_durations
from kgwe.apps.scheduler.budgets.encumbrance_table import Admission, EncumbranceTable
from kgwe.cluster.workload.owner import WorkloadOwner, parse_replacement
from kgwe.costing import money
from kgwe.costing.budgets.admission import Decision, Measure, Outcome, Spend, choose_strictest, decide, format_amount
from kgwe.costing.budgets.encumbrances import MOST_SECONDS
from kgwe.costing.budgets.periods import find_period
from kgwe.costing.rates import HourlyRate
from kgwe.costing.segments import Account
from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe.gpuworkload_status import WorkloadCost
from kgwe.model.units.phrasing import format_count
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.apps.scheduler.budgets.objects import BudgetObjects
    from kgwe.apps.scheduler.budgets.rates import RateSource
    from kgwe.cluster.budgets.rules import BudgetRule
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.queue.workloads import RunTime

#: annotations with what a workload may cost at most, in the currency of the prices
COST_LIMITS: Final = ("kgwe.nvidia.io/cost-limit", "gpu-autoscaler.io/cost-limit")
#: priority of throttled workloads in the queue: below all others
LAST: Final = -(2**31)
# A refused workload is planned again after this time: a cheaper place may be free by now.
_RETRY_S: Final = 300
_NOTHING: Final = Admission("", Account(), HourlyRate(1, 1), 0, Durations(1, 1))


@dataclass(frozen=True, slots=True)
class Parked:
    """A workload that a budget refused when its cost was known."""

    wanted: Admission
    at_s: int


@dataclass(frozen=True, slots=True)
class Held:
    """A workload that waits or is throttled because of a budget."""

    budget: str
    is_throttled: bool


class BudgetGate:
    """Decides for one term of leadership. All calls are made on the event loop."""

    def __init__(
        self,
        state: ClusterState,
        objects: BudgetObjects,
        rates: RateSource,
        *,
        unknown_s: int,
        offer: Callable[[Ask, Admission, Decision, BudgetGate], str] = lambda *_: "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`unknown_s`: the run time of workloads of which nothing is known. `offer`: words about cheaper shapes."""
        self._state = state
        self._objects = objects
        self._rates = rates
        self._unknown_s = unknown_s
        self._offer = offer
        self._clock = clock
        self._accounts = AccountDirectory(state, objects)
        self.table = EncumbranceTable()
        self._parked: dict[str, Parked] = {}
        self.held: dict[str, Held] = {}
        """Owner -> the budget it waits for."""
        self._matching: dict[Account, tuple[BudgetRule, ...]] = {}
        self.refresh_rules()

    # --- changes ----------------------------------------------------------------------------------------

    def refresh_rules(self) -> None:
        """Budgets or namespaces have changed."""
        self._matching.clear()
        self.table.set_rules(self._objects.rules)

    def now_s(self) -> int:
        return int(self._clock())

    def restore(self, predicted: Callable[[str], RunTime | None] = lambda _owner: None) -> None:
        """Encumber what was admitted before this term: rates from the ledger, times from the status of workloads."""
        for owner in list(self._state.ledger.owners()):
            namespace = self._state.owners.namespace(owner)
            if namespace and not self.table.find_running(owner):
                self.table.add(self._restore_one(owner, namespace, predicted(owner)))

    def _restore_one(self, owner: str, namespace: str, predicted: RunTime | None) -> Admission:
        account, rate = self._accounts.find(owner, namespace), self._price(owner)
        workload = self._state.find_workload(owner)
        cost = workload.status.cost if workload is not None else None
        try:
            if cost is not None and cost.admittedAt:
                durations = Durations(_limit(cost.expectedSeconds), _limit(cost.longestSeconds))
                start_s = int(timestamp.epoch_seconds(cost.admittedAt))
                start_s = min(start_s, self.now_s())
                return Admission(
                    owner,
                    account,
                    rate,
                    start_s,
                    durations,
                    deadline_s=self._find_deadline(owner),
                    overrun_s=self._unknown_s,
                )
        except (ValueError, OverflowError):
            pass
        run = self._state.runs.get(owner)
        try:
            start_s = int(timestamp.epoch_seconds((run.start_time if run is not None else None) or ""))
        except (ValueError, OverflowError):
            start_s = 0
        return Admission(
            owner,
            account,
            rate,
            start_s or self.now_s(),
            self._estimate(owner, predicted, self._match_account(account)),
            deadline_s=self._find_deadline(owner),
            overrun_s=self._unknown_s,
        )

    def refresh_deadlines(self) -> None:
        """Encumber by the deadlines that are enforced now: the owner of a Job may have raised or removed its own."""
        for each in list(self.table.list_running()):
            deadline_s = self._find_deadline(each.owner)
            if deadline_s != each.deadline_s:
                self.table.set_deadline(each, deadline_s)

    def end_released(self) -> bool:
        """End the encumbrances of owners that hold nothing any more; returns whether there were any."""
        now_s, ledger = self.now_s(), self._state.ledger
        over = [owner for owner in self.table.owners() if not ledger.has_seats(owner)]
        for owner in over:
            self.table.end(owner, now_s)
        if over:
            self.table.forget_covered(self._objects.spends)
        return bool(over)

    def forget(self, owner: str) -> None:
        """The owner no longer waits."""
        self._parked.pop(owner, None)
        self.held.pop(owner, None)

    # --- decisions --------------------------------------------------------------------------------------

    def review(self, ask: Ask) -> tuple[Ask, Refusal | None]:
        """Return the ask as it is to be queued, or why it is not."""
        owner = ask.owner
        rules = () if parse_replacement(owner) is not None or ask.partial is not None else self._match(ask)
        if not rules:
            self.forget(owner)
            return ask, None
        now_s, parked = self.now_s(), self._parked.get(owner)
        if parked is not None and now_s >= parked.at_s + _RETRY_S:
            parked = None
        wanted = parked.wanted if parked is not None else _NOTHING
        strictest = choose_strictest(self._decide(rule, wanted, now_s) for rule in rules)
        if strictest is None or strictest.outcome is Outcome.ADMITTED:
            self.forget(owner)
            return ask, None
        if strictest.outcome is Outcome.THROTTLED:
            self.forget(owner)
            self.held[owner] = Held(strictest.budget.name, is_throttled=True)
            return replace(ask, priority=LAST), None
        self.held[owner] = Held(strictest.budget.name, is_throttled=False)
        if parked is None:
            used = replace(strictest, cost=0)
            return ask, Refusal(Reason.BUDGET_EXCEEDED, _describe_exhausted(used, ask.namespace))
        return ask, self._refuse(ask, wanted, strictest)

    def admit(self, ask: Ask, predicted: RunTime | None) -> Refusal | None:
        """Encumber what the owner's place costs; or return why it may not have it. Its seats are in the ledger."""
        owner = ask.owner
        if parse_replacement(owner) is not None:
            return None
        rules, limit = self._match(ask), self._find_limit(owner)
        if not rules and limit is None:
            return None
        if isinstance(limit, Refusal):
            return limit
        now_s = self.now_s()
        running = self.table.find_running(owner)
        whole = self._price(owner)
        rate = HourlyRate(
            max(whole.micros - sum(each.rate.micros for each in running), 0),
            max(whole.gpu_micros - sum(each.rate.gpu_micros for each in running), 0),
            whole.is_priced,
        )
        account = self._accounts.find(owner, ask.namespace)
        wanted = Admission(
            owner,
            account,
            rate,
            now_s,
            self._estimate(owner, predicted, rules, ask),
            deadline_s=self._find_deadline(owner),
            overrun_s=self._unknown_s,
        )
        if limit is not None and (refusal := _check_limit(wanted, limit)) is not None:
            return refusal
        strictest = choose_strictest(self._decide(rule, wanted, now_s) for rule in rules)
        if strictest is not None and not strictest.is_admitted:
            self._parked[owner] = Parked(wanted, now_s)
            self.held[owner] = Held(strictest.budget.name, is_throttled=False)
            return self._refuse(ask, wanted, strictest)
        self.forget(owner)
        if rules:
            self.table.add(wanted)
        return None

    def describe_cost(self, owner: str) -> WorkloadCost | None:
        """Return what the status of an admitted workload says; None: no budget counts it."""
        running = self.table.find_running(owner)
        if not running:
            return None
        first = running[0]
        rules = self._match_account(first.account)
        longest = first.rate.micros * first.bounded.longest_s
        return WorkloadCost(
            ratePerHour=_decimal(first.rate.micros * money.HOUR_S),
            predictedCost=_decimal(longest),
            admittedAt=timestamp.format_time(first.start_s),
            expectedSeconds=first.bounded.expected_s,
            longestSeconds=first.bounded.longest_s,
            budgets=tuple(rule.key for rule in rules)[:16],
        )

    def check(self, wanted: Admission, start_s: int | None = None) -> Decision | None:
        """Return the strictest answer for a demand, without effect. None: no budget counts it."""
        now_s, rules = self.now_s(), self._match_account(wanted.account)
        return choose_strictest(self._decide(rule, wanted, now_s, start_s) for rule in rules)

    def _decide(self, rule: BudgetRule, wanted: Admission, now_s: int, start_s: int | None = None) -> Decision:
        spend, book = self._objects.spends.get(rule.key, Spend(0, 0)), self.table.book(rule.key)
        return decide(rule.budget, spend, book, wanted.demand(rule.budget.measure), now_s, start_s=start_s)

    def _refuse(self, ask: Ask, wanted: Admission, strictest: Decision) -> Refusal:
        offers = self._offer(ask, wanted, strictest, self)
        is_own = _is_inside(strictest, ask.namespace)
        words = f"{strictest.message if is_own else strictest.message_without_amounts} {offers}".strip()
        return Refusal(Reason.BUDGET_EXCEEDED, words, possible=strictest.outcome is not Outcome.IMPOSSIBLE)

    # --- what decisions are made from -------------------------------------------------------------------

    def _match(self, ask: Ask) -> tuple[BudgetRule, ...]:
        if not self._objects.rules:
            return ()
        return self._match_account(self._accounts.find(ask.owner, ask.namespace))

    def _match_account(self, account: Account) -> tuple[BudgetRule, ...]:
        if account not in self._matching:
            rules = self._objects.rules.values()
            self._matching[account] = tuple(rule for rule in rules if rule.scope.matches(account))
        return self._matching[account]

    def _price(self, owner: str) -> HourlyRate:
        fleet = self._state.fleet
        return self._rates.price(fleet.snapshot.nodes, self._state.ledger.grants(owner), self.now_s())

    def _estimate(
        self, owner: str, predicted: RunTime | None, rules: Sequence[BudgetRule], ask: Ask | None = None
    ) -> Durations:
        found = self._state.owners.resolve(owner)
        workload = self._state.find_workload(found.uid) if isinstance(found, WorkloadOwner) else None
        serves = workload.serves if workload is not None else ask is not None and ask.serves
        if serves:
            seconds = _limit(max((self._until_next_end(rule) for rule in rules), default=self._unknown_s))
            return Durations(seconds, seconds)
        declared_s = workload.expected_s if workload is not None else ask.expected_s if ask is not None else None
        return estimate_durations(declared_s, predicted, self._unknown_s)

    def _find_deadline(self, owner: str) -> int | None:
        """Return the seconds after which the Job of an owner is stopped, as it is enforced now."""
        run = self._state.runs.get(owner)
        if run is not None:
            return run.deadline_s
        found = self._state.owners.resolve(owner)
        workload = self._state.find_workload(found.uid) if isinstance(found, WorkloadOwner) else None
        return workload.deadline_s if workload is not None else None

    def _until_next_end(self, rule: BudgetRule) -> int:
        """Return the seconds until the end of the next period: a service must fit into a whole one."""
        now_s, budget = self.now_s(), rule.budget
        return (
            find_period(budget.length, budget.zone, find_period(budget.length, budget.zone, now_s).end_s).end_s - now_s
        )

    def _find_limit(self, owner: str) -> int | Refusal | None:
        """Return the cost limit that the owner sets itself, in micro-dollars."""
        found = self._state.owners.resolve(owner)
        workload = self._state.find_workload(found.uid) if isinstance(found, WorkloadOwner) else None
        own = workload.meta.annotations if workload is not None else {}
        text = next((own[key] for key in COST_LIMITS if own.get(key)), "")
        if not text:
            annotations = self._accounts.read_metadata(owner)[1]
            text = next((annotations[key] for key in COST_LIMITS if annotations.get(key)), "")
        if not text:
            return None
        try:
            return money.parse_dollars(text.removeprefix("$"))
        except errors.Permanent as exc:
            return Refusal(Reason.INVALID, f"Annotation cost-limit: {exc}.", possible=False)


def _check_limit(wanted: Admission, limit: int) -> Refusal | None:
    cost = wanted.rate.micros * wanted.bounded.longest_s
    if cost <= limit * money.TICKS:
        return None
    up_to, most = format_amount(cost, Measure.DOLLARS), format_amount(limit * money.TICKS, Measure.DOLLARS)
    hours = wanted.bounded.longest_s / money.HOUR_S
    message = (
        f"The workload costs up to {up_to} ({hours:.1f} hours), and its annotation cost-limit allows {most}."
        f"{_explain_hours(wanted.durations)}"
        " Raise the limit, set activeDeadlineSeconds, or ask for fewer or cheaper GPUs."
    )
    return Refusal(Reason.COST_LIMIT, message, possible=False)


def _explain_hours(durations: Durations) -> str:
    if not durations.is_assumed:
        return ""
    hours = format_count(durations.longest_s / money.HOUR_S, "hour")
    return f" Its run time is unknown, so {hours} are assumed: set expectedDurationSeconds if it is shorter."


def _is_inside(decision: Decision, namespace: str) -> bool:
    """Whether the budget is one of the workload's namespace. Others sum up what other tenants spend."""
    return decision.budget.name.startswith(f"{namespace}/")


def _describe_exhausted(decision: Decision, namespace: str) -> str:
    if not _is_inside(decision, namespace):
        return decision.describe_no_room()
    budget, measure = decision.budget, decision.budget.measure
    used = (
        f"{format_amount(decision.spent, measure)} spent and {format_amount(decision.encumbered, measure)} encumbered"
    )
    begins = decision.describe_next()
    return f"Budget {budget.name} is used up: {used} of {format_amount(budget.limit_ticks, measure)}.{begins}"


def _limit(seconds: int) -> int:
    return max(min(seconds, MOST_SECONDS), 0)


def _decimal(ticks: int) -> str:
    return money.format_dollars(money.round_ticks(ticks), 4).replace(",", "")
