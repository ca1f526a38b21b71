"""Rules of Prometheus as typed values, and their YAML. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import yaml

Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True, slots=True)
class Recording:
    """A series that is computed and stored under another name."""

    record: str
    expr: str
    about: str


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert, its runbook, and series that show when it fires.

    `fault` and `healthy` are series in promtool's notation, one sample per minute: with `fault` the alert fires, with
    `healthy` it does not. `fires_without_data`: the absence of series is the fault.
    """

    name: str
    expr: str
    severity: Severity
    summary: str
    meaning: str
    checks: tuple[str, ...]
    fixes: tuple[str, ...]
    fault: tuple[tuple[str, str], ...]
    healthy: tuple[tuple[str, str], ...]
    wait: str = "5m"
    fires_without_data: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated together."""

    name: str
    recordings: tuple[Recording, ...] = ()
    alerts: tuple[Alert, ...] = ()


def render_groups(groups: tuple[Group, ...]) -> str:
    """Return a rule file."""
    content = {"groups": [_build_group(group) for group in groups]}
    head = "# Written by `python -m kgwe.monitoring`; change src/kgwe/monitoring/rules instead.\n"
    return head + yaml.safe_dump(content, sort_keys=False, width=10_000, allow_unicode=True)


def _build_group(group: Group) -> dict[str, Any]:
    recordings = [{"record": each.record, "expr": each.expr} for each in group.recordings]
    return {"name": group.name, "rules": [*recordings, *map(_build_alert, group.alerts)]}


def _build_alert(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **({"for": alert.wait} if alert.wait else {}),
        "labels": {"severity": alert.severity, "product": "kgwe"},
        "annotations": {
            "summary": alert.summary,
            "description": alert.meaning,
            "runbook": f"docs/runbooks/{alert.name}.md",
        },
    }
