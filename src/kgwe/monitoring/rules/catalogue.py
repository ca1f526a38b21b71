"""All rule files: name -> groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.monitoring.rules import (
    cost_alerts,
    cost_series,
    gpu_alerts,
    gpu_series,
    platform_alerts,
    scaling_alerts,
    scheduling_alerts,
    scheduling_series,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.monitoring.rules.types import Alert, Group, Recording

FILES: Final[Mapping[str, tuple[Group, ...]]] = {
    "recording.yaml": (gpu_series.GROUP, scheduling_series.GROUP),
    "cost.yaml": (cost_series.GROUP,),
    "alerts.yaml": (
        scheduling_alerts.GROUP,
        gpu_alerts.GROUP,
        scaling_alerts.GROUP,
        cost_alerts.GROUP,
        platform_alerts.GROUP,
    ),
}


def list_alerts() -> list[Alert]:
    return [alert for groups in FILES.values() for group in groups for alert in group.alerts]


def list_recordings() -> list[Recording]:
    return [each for groups in FILES.values() for group in groups for each in group.recordings]
