"""Alerts of costs and budgets."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.rules.types import Alert, Group

_LOGS: Final = "`kubectl -n kgwe-system logs deploy/kgwe-cost-engine`"
_BUDGET: Final = 'budget_id="team-a/monthly",scope="Namespace"'
_USE: Final = "max by (budget_id, scope) (kgwe_budget_utilization_percent)"

GROUP: Final = Group(
    "kgwe-cost-alerts",
    alerts=(
        Alert(
            "GPUBudgetNearLimit",
            f"{_USE} > 75 <= 90",
            "info",
            "Budget {{ $labels.budget_id }} is used to {{ $value | humanize }} %",
            "Three quarters of the period's budget are spent.",
            ("`kgwe budget list`: spend, encumbered and projected", "dashboard *GPU Cost Management*"),
            ("raise the limit, or stop what is not needed",),
            ((f"kgwe_budget_utilization_percent{{{_BUDGET}}}", "80x60"),),
            ((f"kgwe_budget_utilization_percent{{{_BUDGET}}}", "40x1440"),),
        ),
        Alert(
            "GPUBudgetAlmostUsed",
            f"{_USE} > 90 <= 100",
            "warning",
            "Budget {{ $labels.budget_id }} is used to {{ $value | humanize }} %",
            "New work may soon wait for money, if the budget blocks.",
            ("`kgwe budget list`",),
            ("raise the limit, or stop what is not needed",),
            ((f"kgwe_budget_utilization_percent{{{_BUDGET}}}", "95x60"),),
            ((f"kgwe_budget_utilization_percent{{{_BUDGET}}}", "80x1440"),),
        ),
        Alert(
            "GPUBudgetExceeded",
            "max by (budget_id, scope) (kgwe_budget_exceeded) == 1",
            "warning",
            "Budget {{ $labels.budget_id }} is exceeded",
            "What follows is the budget's `enforcementPolicy`: an alert, a throttle, or a stop of new work.",
            ("`kgwe budget list`", "workloads with the reason `BudgetExceeded`"),
            ("raise the limit, or wait for the next period",),
            ((f"kgwe_budget_exceeded{{{_BUDGET}}}", "1x60"),),
            ((f"kgwe_budget_exceeded{{{_BUDGET}}}", "0x1440"),),
        ),
        Alert(
            "GPUBudgetWithoutEffect",
            "max by (budget_id, reason) (kgwe_budget_without_effect) == 1",
            "warning",
            "Budget {{ $labels.budget_id }} has no effect: {{ $labels.reason }}",
            "Spend is not counted against it.",
            ("`kubectl get gpubudget -A -o yaml`: the condition `Ready`",),
            ("correct the field that the message names",),
            (('kgwe_budget_without_effect{budget_id="a/b",reason="Invalid"}', "1x60"),),
            ((f"kgwe_budget_exceeded{{{_BUDGET}}}", "0x1440"),),
        ),
        Alert(
            "GPUCostPricesStale",
            "time() - min by (source) (kgwe_gpu_cost_prices_fetched_timestamp_seconds) > 7200",
            "warning",
            "Prices of {{ $labels.source }} are {{ $value | humanizeDuration }} old",
            "The last prices are still used.",
            (_LOGS, "can the cost engine reach the price list?"),
            ("allow the flow to the cloud's price API, or use price files",),
            (('kgwe_gpu_cost_prices_fetched_timestamp_seconds{source="aws"}', "0x200"),),
            (('kgwe_gpu_cost_prices_fetched_timestamp_seconds{source="aws"}', "0+60x1440"),),
        ),
        Alert(
            "GPUNodesWithoutPrice",
            "max(kgwe_gpu_cost_unpriced_nodes) > 0",
            "warning",
            "{{ $value }} GPU nodes have no price",
            "Nodes without a price cost nothing in reports and budgets.",
            ("`kgwe cost`: the GPU-hours without a price", "`kubectl get nodes -L node.kubernetes.io/instance-type`"),
            ("add a row for their instance type to a price file (docs/cost.md)",),
            (("kgwe_gpu_cost_unpriced_nodes", "1x60"),),
            (("kgwe_gpu_cost_unpriced_nodes", "0x1440"),),
            wait="15m",
        ),
        Alert(
            "GPUCostUnbalanced",
            "max(abs(kgwe_gpu_cost_unbalanced_dollars)) > 0",
            "critical",
            "The lines of the cost ledger miss {{ $value }} dollars of the fleet's cost",
            "This never happens in a correct ledger: reports may be wrong.",
            (_LOGS, "`kgwe debug bundle`"),
            ("keep the ledger file and report it",),
            (("kgwe_gpu_cost_unbalanced_dollars", "0.5x60"),),
            (("kgwe_gpu_cost_unbalanced_dollars", "0x1440"),),
            wait="0m",
        ),
        Alert(
            "GPUCostNotStored",
            "time() - max(kgwe_gpu_cost_counted_until_timestamp_seconds > 0) > 1800",
            "warning",
            "Costs are stored only until {{ $value | humanizeDuration }} ago",
            "The store does not answer, or no cost engine leads. What happened is counted later, from memory.",
            (_LOGS, "`kgwe_gpu_cost_write_failures_total`", "`/readyz` of the cost engine"),
            ("make the store available again",),
            (("kgwe_gpu_cost_counted_until_timestamp_seconds", "60x120"),),
            (("kgwe_gpu_cost_counted_until_timestamp_seconds", "60+60x1440"),),
        ),
    ),
)
