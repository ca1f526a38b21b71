"""All dashboards, by file name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.monitoring.dashboards import (
    autoscaler,
    cluster_overview,
    cost,
    health,
    kgwe,
    namespaces,
    pods,
    scheduling,
    sharing,
    waste,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.monitoring.panels import Dashboard

DASHBOARDS: Final[Mapping[str, Dashboard]] = {
    f"{module.DASHBOARD.uid}.json": module.DASHBOARD
    for module in (
        cluster_overview, cost, kgwe, namespaces, pods, scheduling, sharing, waste, autoscaler, health
    )
}  # fmt: skip
