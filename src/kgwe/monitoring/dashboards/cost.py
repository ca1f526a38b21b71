"""GPU Cost Management: the fleet's cost by line, namespace and team, budgets and savings."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.panels import Dashboard, Panel, Query, Row
from kgwe.monitoring.promql import own

_FLEET: Final = 'kgwe_gpu_cost_fleet_per_hour_dollars{line="fleet"}'

DASHBOARD: Final = Dashboard(
    "gpu-cost-management",
    "GPU Cost Management",
    "What the GPU nodes cost, which namespaces and teams held them, budgets and savings.",
    (
        Row(
            "Now",
            (
                Panel("Cost per hour", "stat", (Query(f"max({_FLEET})"),), "currencyUSD", 5, 4),
                Panel(
                    "Cost of a month at this rate", "stat", (Query("max(kgwe:fleet_cost:dollars_per_month)"),),
                    "currencyUSD", 5, 4,
                ),
                Panel(
                    "Cost so far", "stat", (Query('max(kgwe_gpu_cost_fleet_dollars_total{line="fleet"})'),),
                    "currencyUSD", 5, 4,
                ),
                Panel(
                    "Held by no pod", "stat",
                    (Query("max(kgwe:fleet_cost_unallocated:ratio)"),),
                    "percentunit", 5, 4, "Share of the cost of GPUs that no pod holds", (0.2, 0.5),
                ),
                Panel(
                    "Savings that are recommended", "stat",
                    (Query("(sum(kgwe_cost_savings_recommended_dollars) or vector(0))"),), "currencyUSD", 4, 4,
                    "Dollars per month",
                ),
            ),
        ),
        Row(
            "Owners",
            (
                Panel(
                    "Cost per day by namespace", "timeseries",
                    (Query("max by (namespace) (kgwe:namespace_cost:dollars_per_day)", "{{namespace}}"),),
                    "currencyUSD", 12, stacked=True,
                ),
                Panel(
                    "Cost per day by team", "timeseries",
                    (Query("max by (team) (kgwe:team_cost:dollars_per_day)", "{{team}}"),),
                    "currencyUSD", 12, stacked=True, about="The name is empty for what belongs to no team",
                ),
                Panel(
                    "Lines of the books", "timeseries",
                    (Query('max by (line) (kgwe_gpu_cost_fleet_per_hour_dollars{line!="fleet"})', "{{line}}"),),
                    "currencyUSD", 12, stacked=True, about="All lines together are the cost of the fleet",
                ),
                Panel(
                    "Cost by namespace in the chosen time", "table",
                    (Query("sort_desc(sum by (namespace) ("
                           f"{own('increase(kgwe_gpu_cost_dollars_total[$__range])', 'namespace')}))"),),
                    "currencyUSD", 12,
                ),
            ),
        ),
        Row(
            "Budgets",
            (
                Panel(
                    "Used", "bargauge",
                    (Query("max by (budget_id) (kgwe_budget_utilization_percent)", "{{budget_id}}"),), "percent", 8,
                    limits=(75, 90), top=100,
                ),
                Panel(
                    "Spent, encumbered and projected", "timeseries",
                    (Query("max by (budget_id) (kgwe_budget_spend)", "{{budget_id}} spent"),
                     Query("max by (budget_id) (kgwe_budget_encumbered)", "{{budget_id}} encumbered"),
                     Query("max by (budget_id) (kgwe_budget_projected_spend)", "{{budget_id}} projected"),
                     Query("max by (budget_id) (kgwe_budget_limit)", "{{budget_id}} limit")), width=8,
                ),
                Panel(
                    "How fast budgets are used", "timeseries",
                    (Query("max by (budget_id) (kgwe_budget_burn_rate)", "{{budget_id}}"),), width=8,
                    about="1 uses the budget up at the end of its period", limits=(1, 2),
                ),
            ),
        ),
        Row(
            "Nodes",
            (
                Panel(
                    "Cost of a month by capacity type", "piechart",
                    (Query("max by (capacity_type) (gpu_autoscaler_estimated_monthly_cost_usd)", "{{capacity_type}}"),),
                    "currencyUSD", 8,
                ),
                Panel(
                    "Saved by spot", "stat", (Query("max(gpu_autoscaler_spot_savings_percentage)"),), "percent", 8,
                ),
                Panel("Nodes without a price", "stat", (Query("max(kgwe_gpu_cost_unpriced_nodes)"),), width=8,
                      limits=(1, 2)),
            ),
        ),
    ),
)  # fmt: skip
