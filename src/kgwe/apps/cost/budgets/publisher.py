"""Publishes what budgets have spent: after each count, one write per budget whose figures changed enough.

The status is the only memory: which thresholds have fired, and since when the limit is exceeded. A new leader continues
from it. An alert is stored before it is sent, so a restart never sends it again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from kgwe import errors
from kgwe.apps.cost.budgets import status as statuses
from kgwe.apps.cost.budgets.figures import FigureReader
from kgwe.cluster.budgets.rules import BudgetProblem, BudgetRule, find_overlaps, read_rule
from kgwe.kube import dialects
from kgwe.kube.api import resources
from kgwe.kube.client.informer import Informer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.apps.cost.budgets.alert_sender import AlertSender
    from kgwe.apps.cost.budgets.figures import AccountReader, Figures
    from kgwe.apps.cost.budgets.metrics import BudgetMetrics
    from kgwe.costing.attribution import AttributionRules
    from kgwe.costing.books import Sums
    from kgwe.costing.segments import Account
    from kgwe.kube.api.kgwe.gpubudget import GPUBudget, GPUBudgetStatus
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)


class BudgetPublisher:
    """The GPUBudgets of the cluster, and what is written into their status."""

    def __init__(
        self, client: KubeClient, attribution: AttributionRules, sender: AlertSender, metrics: BudgetMetrics
    ) -> None:
        self._client = client
        self._attribution = attribution
        self._sender = sender
        self._metrics = metrics
        self.informer: Informer[GPUBudget] = Informer(client, resources.GPU_BUDGET)
        self._days: dict[int, Mapping[Account, Sums]] = {}
        # What was written last: the watch shows it a moment later.
        self._written: dict[str, tuple[str, GPUBudgetStatus]] = {}

    async def is_served(self) -> bool:
        """Whether the cluster knows GPUBudgets."""
        return bool(await dialects.find_served(self._client, (resources.GPU_BUDGET,)))

    async def publish(self, reader: AccountReader, until_s: int, currency: str) -> None:
        """Publish the figures of all budgets up to a time."""
        budgets = dict(self.informer.store)
        self._forget_gone(budgets)
        rules = {key: read_rule(obj, self._attribution, currency) for key, obj in budgets.items()}
        counting = [each for each in rules.values() if isinstance(each, BudgetRule)]
        try:
            figures = await asyncio.to_thread(self._read_figures, reader, counting, until_s)
        except errors.KgweError as exc:
            log.warning("budgets_not_counted", error=str(exc))
            return
        overlaps = find_overlaps(counting)
        for key, obj in budgets.items():
            try:
                await self._publish_one(obj, rules[key], figures.get(key), until_s, overlaps.get(key, ()))
            except errors.KgweError as exc:
                self._metrics.failures += 1
                log.warning("budget_not_published", budget=key, error=str(exc))
            except Exception:
                # One budget must not stop the others.
                self._metrics.failures += 1
                log.exception("budget_not_published", budget=key)

    def _read_figures(self, reader: AccountReader, rules: list[BudgetRule], until_s: int) -> dict[str, Figures]:
        for start_s in [each for each in self._days if each < until_s - 20 * 86_400]:
            del self._days[start_s]
        # A day may be corrected for some hours after its end.
        for start_s in [each for each in self._days if each > until_s - 2 * 86_400]:
            del self._days[start_s]
        found = FigureReader(reader, until_s, self._days)
        return {rule.key: found.read(rule) for rule in rules}

    def _forget_gone(self, budgets: Mapping[str, GPUBudget]) -> None:
        for key in self._written.keys() - budgets.keys():
            del self._written[key]
        self._metrics.keep(budgets.keys())

    async def _publish_one(
        self,
        obj: GPUBudget,
        rule: BudgetRule | BudgetProblem,
        figures: Figures | None,
        until_s: int,
        overlaps: tuple[str, ...],
    ) -> None:
        obj = self._with_last_write(obj)
        due: list[statuses.Alert] = []
        if isinstance(rule, BudgetProblem):
            new = statuses.build_problem_status(obj, rule, until_s)
            is_due = new.conditions != obj.status.conditions or bool(obj.status.currentSpend)
            self._metrics.set_problem(obj.metadata.key, rule.reason)
        elif figures is None:
            return
        else:
            new, due = statuses.build_status(obj, rule, figures, until_s, overlaps=overlaps)
            is_due = statuses.is_due(obj.status, new, rule.budget.limit_ticks)
            self._metrics.set_figures(obj, rule, new)
        if not is_due:
            return
        await self._write(obj, new)
        for alert in due:
            self._sender.send(obj, alert, float(until_s))

    def _with_last_write(self, obj: GPUBudget) -> GPUBudget:
        """Return the object with the status that was written last, if the watch has not shown it yet."""
        version, status = self._written.get(obj.metadata.key, ("", None))
        if status is None or version != obj.metadata.resourceVersion:
            self._written.pop(obj.metadata.key, None)
            return obj

        return msgspec.structs.replace(obj, status=status)

    async def _write(self, obj: GPUBudget, new: GPUBudgetStatus) -> None:
        meta = obj.metadata
        body: dict[str, Any] = statuses.encode_patch(new)
        # The budget was deleted meanwhile: there is nothing to tell.
        with contextlib.suppress(errors.NotFound):
            await self._client.patch(resources.GPU_BUDGET, meta.name, body, meta.namespace, subresource="status")
            self._written[meta.key] = meta.resourceVersion, new
            self._metrics.writes += 1
