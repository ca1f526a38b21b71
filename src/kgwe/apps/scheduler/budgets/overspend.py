"""Suspends running preemptible workloads of a budget that stays exceeded, and resumes them when it no longer is.

What was suspended is recorded on the workload (`cluster/suspension/marks.py`): a new leader knows what to resume. The
record is a claim of any user who can edit the workload; all it can do is to resume that workload, which then must pass
its budgets again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.apps.scheduler.budgets.turns import take_in_turns
from kgwe.cluster.suspension import marks
from kgwe.cluster.suspension.owner_kinds import KINDS
from kgwe.cluster.suspension.owner_search import Owner
from kgwe.cluster.suspension.suspender import Result, Suspender
from kgwe.costing.budgets.admission import Spend
from kgwe.costing.budgets.periods import find_period
from kgwe.kube.api import timestamp
from kgwe.kube.client.client import retry_conflict
from kgwe.kube.client.events import Event

if TYPE_CHECKING:
    from kgwe.apps.scheduler.budgets.gate import BudgetGate
    from kgwe.apps.scheduler.budgets.objects import BudgetObjects
    from kgwe.cluster.budgets.rules import BudgetRule
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.cluster.suspension.suspender import Outcome
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.events import EventRecorder

    _Due = tuple[Workload, BudgetRule | None]

log = structlog.get_logger(__name__)

BY: Final = "kgwe-budgets"
REASON: Final = "BudgetExceeded"
# Workloads that are suspended or resumed in one look.
_MOST: Final = 50


class OverspendController:
    """Acts for budgets with `onExceeded: Suspend`."""

    def __init__(
        self, client: KubeClient, events: EventRecorder, state: ClusterState, objects: BudgetObjects, gate: BudgetGate
    ) -> None:
        self._client = client
        self._events = events
        self._state = state
        self._objects = objects
        self._gate = gate
        self._suspender = Suspender(client, BY)
        self._look = 0

    async def look(self) -> None:
        """Suspend and resume what is due. An error of one workload stops no other."""
        self._look += 1
        for workload, rule in self._take(self._list_to_suspend()):
            await self._act(workload, rule, suspend=True)
        for workload, rule in self._take(self._list_to_resume()):
            await self._act(workload, rule, suspend=False)

    def _take(self, due: list[_Due]) -> list[_Due]:
        return take_in_turns(due, lambda each: each[0].meta.namespace, _MOST, self._look)

    def _list_to_suspend(self) -> list[_Due]:
        rules = [each for each in self._objects.rules.values() if each.suspends and self._is_grace_over(each)]
        found: list[_Due] = []
        for admission in self._gate.table.list_running() if rules else ():
            workload = self._state.find_workload(admission.owner)
            rule = next((each for each in rules if each.scope.matches(admission.account)), None)
            if workload is not None and workload.preemptible and workload.is_wanted and rule is not None:
                found.append((workload, rule))
        return found

    def _list_to_resume(self) -> list[_Due]:
        found: list[_Due] = []
        for workload in list(self._state.workloads.values()):
            record = marks.read_record(workload.meta.annotations) if workload.suspend else None
            if record is None or record.by != BY:
                continue
            key = record.reason.partition(":")[2].strip().partition(" ")[0]
            rule = self._objects.rules.get(key)
            if rule is None or not rule.suspends or not self._is_over(rule):
                found.append((workload, rule))
        return found

    def _is_over(self, rule: BudgetRule) -> bool:
        """Whether the published spend of this period exceeds the limit."""
        spend, budget = self._objects.spends.get(rule.key, Spend(0, 0)), rule.budget
        period = find_period(budget.length, budget.zone, self._gate.now_s())
        return period.start_s <= spend.until_s < period.end_s and spend.ticks > budget.limit_ticks

    def _is_grace_over(self, rule: BudgetRule) -> bool:
        obj = self._objects.find(rule.key)
        if obj is None or not obj.status.exceededSince or not self._is_over(rule):
            return False
        try:
            since_s = timestamp.epoch_seconds(obj.status.exceededSince)
        except (ValueError, OverflowError):
            return False
        return self._gate.now_s() - since_s >= rule.grace_s

    async def _act(self, workload: Workload, rule: BudgetRule | None, *, suspend: bool) -> None:
        try:
            outcome = await (self._suspend(workload, rule) if suspend and rule is not None else self._resume(workload))
        except errors.KgweError as exc:
            log.warning("budget_suspension_failed", workload=workload.meta.key, error=str(exc))
            return
        if outcome.result not in {Result.SUSPENDED, Result.RESTORED}:
            return
        log.info("budget_suspension", workload=workload.meta.key, result=str(outcome.result))
        name = rule.key if rule is not None else "that was deleted"
        if suspend:
            note = f"Suspended: budget {name} is exceeded, and the workload is preemptible."
            self._events.record(Event(workload.kind.resource, workload.meta, "Warning", REASON, note, "Suspending"))
        else:
            note = f"Resumed: budget {name} is no longer exceeded."
            self._events.record(Event(workload.kind.resource, workload.meta, "Normal", "Resumed", note, "Resuming"))

    async def _suspend(self, workload: Workload, rule: BudgetRule) -> Outcome:
        kind = next(each for each in KINDS if each.resource.group == workload.kind.resource.group)

        async def attempt() -> Outcome:
            obj = await self._client.get(kind.resource, workload.meta.name, workload.meta.namespace)
            reason = f"{REASON}: {rule.key} is exceeded; it resumes in the next period, or when the limit is raised"
            # An annotation that keeps idle workloads is the tenant's, and spends no money of others.
            return await self._suspender.suspend(Owner(kind, obj), reason, self._gate.now_s(), heeds_keep=False)

        return await retry_conflict(attempt)

    async def _resume(self, workload: Workload) -> Outcome:
        kind = next(each for each in KINDS if each.resource.group == workload.kind.resource.group)
        return await self._suspender.restore(kind, workload.meta.namespace, workload.meta.name)
