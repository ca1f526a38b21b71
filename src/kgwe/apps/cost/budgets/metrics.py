"""Metrics of budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from prometheus_client import CollectorRegistry, Metric

    from kgwe.cluster.budgets.rules import BudgetRule
    from kgwe.kube.api.kgwe.gpubudget import GPUBudget, GPUBudgetStatus

_LABELS: Final = ("budget_id", "scope")


class BudgetMetrics(Collector):
    """What the last count found, by budget."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.writes = 0
        self.failures = 0
        self._figures: dict[str, tuple[str, float, GPUBudgetStatus]] = {}
        self._problems: dict[str, str] = {}
        registry.register(self)

    def set_figures(self, obj: GPUBudget, rule: BudgetRule, status: GPUBudgetStatus) -> None:
        """Set the figures of a budget that counts."""
        self._problems.pop(rule.key, None)
        self._figures[rule.key] = obj.spec.scope, rule.budget.limit / 1e6, status

    def set_problem(self, key: str, reason: str) -> None:
        """Note that a budget has no effect."""
        self._figures.pop(key, None)
        self._problems[key] = reason

    def keep(self, keys: Collection[str]) -> None:
        """Forget all other budgets."""
        for table in (self._figures, self._problems):
            for key in [each for each in table if each not in keys]:
                del table[key]

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        families = {
            name: GaugeMetricFamily(f"kgwe_budget_{name}", text, labels=_LABELS)
            for name, text in (
                ("utilization_percent", "Spend of the period in percent of the limit."),
                ("limit", "Limit of a period, in dollars or GPU-hours."),
                ("spend", "Spend of the period, in dollars or GPU-hours."),
                ("encumbered", "What admitted workloads are going to cost in the period."),
                ("projected_spend", "What the period will have cost."),
                ("burn_rate", "How fast the last hour used the budget: 1 uses it up at the end of the period."),
                ("exceeded", "1 while the limit is exceeded."),
            )
        }
        seed = GaugeMetricFamily(
            "gpu_autoscaler_budget_percentage", "The same as kgwe_budget_utilization_percent.", labels=("budget",)
        )
        for key, (scope, limit, status) in sorted(self._figures.items()):
            values = {
                "utilization_percent": status.utilizationPercent or 0.0,
                "limit": limit,
                "spend": float(status.currentSpend or 0),
                "encumbered": float(status.encumbered or 0),
                "projected_spend": float(status.projectedSpend or 0),
                "burn_rate": status.burnRate or 0.0,
                "exceeded": float(status.exceededSince is not None),
            }
            for name, value in values.items():
                families[name].add_metric((key, scope), value)
            seed.add_metric((key,), status.utilizationPercent or 0.0)
        yield from families.values()
        yield seed
        problems = GaugeMetricFamily(
            "kgwe_budget_without_effect", "Budgets that have no effect, by reason.", labels=("budget_id", "reason")
        )
        for key, reason in sorted(self._problems.items()):
            problems.add_metric((key, reason), 1.0)
        yield problems
        yield CounterMetricFamily("kgwe_budget_status_writes", "Writes of the status of budgets.", value=self.writes)
        yield CounterMetricFamily("kgwe_budget_failures", "Budgets that could not be published.", value=self.failures)
