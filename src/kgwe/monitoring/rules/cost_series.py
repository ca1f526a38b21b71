"""Recorded series of costs and budgets."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.promql import own, ratio
from kgwe.monitoring.rules.types import Group, Recording

_RATE: Final = own("kgwe_gpu_cost_per_hour_dollars", "namespace")

GROUP: Final = Group(
    "kgwe-costs",
    recordings=(
        Recording(
            "kgwe:namespace_cost:dollars_per_day",
            f"sum by (namespace) (max by (namespace, team) ({_RATE})) * 24",
            "What a namespace costs per day at the present rate",
        ),
        Recording(
            "kgwe:team_cost:dollars_per_day",
            f"sum by (team) (max by (namespace, team) ({_RATE})) * 24",
            "What a team costs per day at the present rate",
        ),
        Recording(
            "kgwe:fleet_cost:dollars_per_month",
            'max(kgwe_gpu_cost_fleet_per_hour_dollars{line="fleet"}) * 730',
            "What GPU nodes cost per month of 730 hours at the present rate",
        ),
        Recording(
            "kgwe:fleet_cost_unallocated:ratio",
            ratio(
                'max(kgwe_gpu_cost_fleet_per_hour_dollars{line="unallocated"})',
                'max(kgwe_gpu_cost_fleet_per_hour_dollars{line="fleet"})',
            ),
            "Share of the cost of GPU nodes that no pod holds",
        ),
    ),
)
