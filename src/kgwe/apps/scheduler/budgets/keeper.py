"""Keeps budgets up to date on the leader: ended workloads, new periods, new spend, and what their status says."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.costing import money
from kgwe.costing.budgets.admission import Policy, Spend
from kgwe.costing.budgets.periods import find_period
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.budgets.gate import BudgetGate
    from kgwe.apps.scheduler.budgets.objects import BudgetObjects
    from kgwe.apps.scheduler.budgets.overspend import OverspendController
    from kgwe.cluster.budgets.rules import BudgetRule
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

_LOOK_S: Final = 0.5
_REPORT_S: Final = 2.0
# What is encumbered is written when it has changed by this part of the limit; a count of waiting workloads less often.
_STEP: Final = 0.01
_QUIET_S: Final = 10.0


class BudgetKeeper:
    """Runs for one term. Losing a write does no harm: the next look makes it again."""

    def __init__(
        self,
        client: KubeClient,
        objects: BudgetObjects,
        gate: BudgetGate,
        overspend: OverspendController,
        *,
        review: Callable[[], None],
    ) -> None:
        """`review`: looks again at all workloads that wait."""
        self._overspend = overspend
        self._client = client
        self._objects = objects
        self._gate = gate
        self._review = review
        self._is_due = False
        self._periods: dict[str, int] = {}
        self._reported: dict[str, tuple[int, bool, int, float]] = {}
        """Budget -> encumbered ticks, whether it acts, how many wait, and when that was written."""

    async def run(self) -> None:
        """Look again whenever something changed, until cancelled."""
        unsubscribe = self._objects.subscribe(self._on_rules, self._on_spend)
        reported_s = 0.0
        try:
            while True:
                try:
                    self._look()
                    if time.monotonic() - reported_s >= _REPORT_S:
                        reported_s = time.monotonic()
                        self._gate.refresh_deadlines()
                        await self._report_all()
                        await self._overspend.look()
                except Exception:
                    log.exception("budgets_not_kept")
                await asyncio.sleep(_LOOK_S)
        finally:
            unsubscribe()

    def _on_rules(self) -> None:
        self._gate.refresh_rules()
        # A new budget counts what runs already.
        self._gate.restore()
        self._is_due = True

    def _on_spend(self, _key: str) -> None:
        self._gate.table.forget_covered(self._objects.spends)
        self._is_due = True

    def _look(self) -> None:
        """Review what waits, if workloads ended, a period began, or budgets changed."""
        ended, rolled = self._gate.end_released(), self._find_rolled()
        if ended or rolled or self._is_due:
            self._is_due = False
            self._review()

    def _find_rolled(self) -> bool:
        """Whether a new period of a budget has begun."""
        now_s, is_other = self._gate.now_s(), False
        for key, rule in self._objects.rules.items():
            start_s = find_period(rule.budget.length, rule.budget.zone, now_s).start_s
            if self._periods.get(key, start_s) != start_s:
                is_other = True
            self._periods[key] = start_s
        return is_other

    async def _report_all(self) -> None:
        counts: dict[str, int] = {}
        for held in self._gate.held.values():
            counts[held.budget] = counts.get(held.budget, 0) + 1
        for key, rule in list(self._objects.rules.items()):
            # One budget whose status cannot be written must not stop the others.
            with contextlib.suppress(errors.KgweError):
                await self._report(rule, counts.get(key, 0))
        for key in self._reported.keys() - self._objects.rules.keys():
            del self._reported[key]

    async def _report(self, rule: BudgetRule, waiting: int) -> None:
        now_s, budget = self._gate.now_s(), rule.budget
        period = find_period(budget.length, budget.zone, now_s)
        spend = self._objects.spends.get(rule.key, Spend(0, 0))
        encumbered = self._gate.table.book(rule.key).total_in(period, spend.until_s, now_s)
        spent = spend.ticks if period.start_s <= spend.until_s < period.end_s else 0
        share = budget.soft if budget.policy is Policy.THROTTLE else 1
        is_active = budget.policy is not Policy.ALERT and (
            waiting > 0 or spent + encumbered > budget.limit_ticks * share
        )
        before = self._reported.get(rule.key) or self._read_reported(rule.key)
        moved = abs(encumbered - before[0])
        is_news = moved >= budget.limit_ticks * _STEP or is_active != before[1] or (moved and not encumbered)
        if not is_news and (waiting == before[2] or time.monotonic() < before[3] + _QUIET_S):
            return
        namespace, _, name = rule.key.partition("/")
        amount = money.format_dollars(money.round_ticks(encumbered), 2).replace(",", "")
        body = {"status": {"encumbered": amount, "enforcementActive": is_active, "waitingWorkloads": waiting}}
        await self._client.patch(resources.GPU_BUDGET, name, body, namespace, subresource="status")
        self._reported[rule.key] = encumbered, is_active, waiting, time.monotonic()

    def _read_reported(self, key: str) -> tuple[int, bool, int, float]:
        """Return what an earlier leader wrote."""
        found = self._objects.find(key)
        if found is None:
            return 0, False, 0, 0.0
        status = found.status
        try:
            ticks = money.parse_dollars(status.encumbered or "0") * money.TICKS
        except errors.KgweError:
            ticks = 0
        return ticks, status.enforcementActive, status.waitingWorkloads, 0.0
