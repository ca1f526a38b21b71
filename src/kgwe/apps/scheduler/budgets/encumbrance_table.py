"""What admitted workloads are going to cost, by budget.

An admission is known by its owner and its start, so a workload that starts again keeps what it cost before. It is
kept until the spend that the cost engine publishes covers its end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kgwe.costing.budgets.admission import Demand, Measure, Policy
from kgwe.costing.budgets.encumbrances import Encumbrance, EncumbranceBook

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from kgwe.apps.scheduler.budgets.durations import Durations
    from kgwe.cluster.budgets.rules import BudgetRule
    from kgwe.costing.budgets.admission import Spend
    from kgwe.costing.rates import HourlyRate
    from kgwe.costing.segments import Account


@dataclass(frozen=True, slots=True)
class Admission:
    """A workload that was admitted, and what it is expected to cost."""

    owner: str
    account: Account
    rate: HourlyRate
    start_s: int
    durations: Durations
    """As they are without a deadline."""
    ended_s: int | None = None
    deadline_s: int | None = None
    """Seconds after which its Job is stopped, as it is enforced now."""
    overrun_s: int = 0
    """What a workload that outruns its time encumbers more, where nothing may be overspent."""

    @property
    def key(self) -> str:
        return f"{self.owner}@{self.start_s}"

    def demand(self, measure: Measure) -> Demand:
        """Return what a budget of this measure is asked for."""
        rate = self.rate.micros if measure is Measure.DOLLARS else self.rate.gpu_micros
        return Demand(self.key, rate, self.bounded.expected_s, self.bounded.longest_s)

    @property
    def bounded(self) -> Durations:
        """How long it runs, with what its Job enforces."""
        return self.durations.bound(self.deadline_s)

    def encumber(self, rule: BudgetRule) -> Encumbrance:
        """Return the encumbrance of a budget: of the longest run time where nothing may be overspent."""
        wanted = self.demand(rule.budget.measure)
        is_strict = rule.budget.policy is Policy.BLOCK
        return Encumbrance(
            self.key,
            wanted.rate,
            self.start_s,
            wanted.longest_s if is_strict else wanted.expected_s,
            self.ended_s,
            self.overrun_s if is_strict else 0,
            self.deadline_s,
        )


class EncumbranceTable:
    """Admissions, and a book of encumbrances for each budget."""

    def __init__(self) -> None:
        self._rules: dict[str, BudgetRule] = {}
        self._admissions: dict[str, Admission] = {}
        self._running: dict[str, set[str]] = {}
        """Owner -> keys of its admissions that have not ended."""
        self._books: dict[str, EncumbranceBook] = {}

    def __len__(self) -> int:
        return len(self._admissions)

    def set_rules(self, rules: Mapping[str, BudgetRule]) -> None:
        """Count by these budgets from now on."""
        self._rules = dict(rules)
        self._books = {
            key: EncumbranceBook(
                each.encumber(rule) for each in self._admissions.values() if rule.scope.matches(each.account)
            )
            for key, rule in self._rules.items()
        }

    def book(self, key: str) -> EncumbranceBook:
        """Return the book of a budget."""
        return self._books.setdefault(key, EncumbranceBook())

    def add(self, admission: Admission) -> None:
        """Add an admission; one of the same owner and second counts as one together with those before."""
        before = self._admissions.get(admission.key)
        if before is not None and before.ended_s is None:
            longer = before.durations.join(admission.durations)
            admission = replace(admission, rate=before.rate.plus(admission.rate), durations=longer)
        self._put(admission)
        self._running.setdefault(admission.owner, set()).add(admission.key)

    def set_deadline(self, admission: Admission, deadline_s: int | None) -> None:
        """Encumber an admission by what its Job enforces now."""
        if self._admissions.get(admission.key) is admission:
            self._put(replace(admission, deadline_s=deadline_s))

    def find_running(self, owner: str) -> list[Admission]:
        """Return the admissions of an owner that have not ended."""
        return [self._admissions[key] for key in sorted(self._running.get(owner, ()))]

    def owners(self) -> Collection[str]:
        """Return the owners with admissions that have not ended."""
        return self._running.keys()

    def list_running(self) -> Iterator[Admission]:
        """Yield all admissions that have not ended."""
        for keys in self._running.values():
            yield from (self._admissions[key] for key in keys)

    def end(self, owner: str, at_s: int) -> None:
        """Record that an owner holds nothing any more."""
        for key in self._running.pop(owner, ()):
            known = self._admissions[key]
            self._put(replace(known, ended_s=max(at_s, known.start_s)))

    def forget_covered(self, spends: Mapping[str, Spend]) -> None:
        """Drop what has ended and is part of the published spend of every budget that counts it."""
        covered = [
            each
            for each in self._admissions.values()
            if each.ended_s is not None
            and all(
                spends[key].until_s >= each.ended_s
                for key, rule in self._rules.items()
                if rule.scope.matches(each.account) and key in spends
            )
        ]
        for each in covered:
            del self._admissions[each.key]
            for book in self._books.values():
                book.remove(each.key)

    def _put(self, admission: Admission) -> None:
        self._admissions[admission.key] = admission
        for key, rule in self._rules.items():
            if rule.scope.matches(admission.account):
                self.book(key).add(admission.encumber(rule))
