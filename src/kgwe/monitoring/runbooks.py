"""Runbooks: a page for each alert and each condition reason, and their index. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.monitoring import reasons
from kgwe.monitoring.rules import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.monitoring.reasons import ReasonPage
    from kgwe.monitoring.rules.types import Alert

INDEX = "README.md"


def render_pages() -> dict[str, str]:
    """Return the pages by their path in docs/runbooks."""
    alerts = catalogue.list_alerts()
    pages = {f"{alert.name}.md": _render_alert(alert) for alert in alerts}
    pages |= {f"reasons/{page.name}.md": _render_reason(page) for page in reasons.PAGES}
    pages[INDEX] = "\n".join(_render_index(alerts)) + "\n"
    return pages


def _render_alert(alert: Alert) -> str:
    waits = f"It fires after {alert.wait}." if alert.wait not in {"", "0m"} else "It fires at once."
    parts = [
        f"# {alert.name}",
        f"Severity: {alert.severity}. {waits}",
        f"## Meaning\n\n{alert.meaning}",
        f"## Query\n\n```promql\n{alert.expr}\n```",
        "## Look at\n\n" + "\n".join(f"- {each}" for each in alert.checks),
        "## What to do\n\n" + "\n".join(f"- {each}" for each in alert.fixes),
        "[All runbooks](README.md)",
    ]
    return "\n\n".join(parts) + "\n"


def _render_reason(page: ReasonPage) -> str:
    parts = [
        f"# {page.name}",
        f"Where: {page.where}.",
        f"## Meaning\n\n{page.meaning}",
        f"## What to do\n\n{page.fix}",
        "[All runbooks](../README.md)",
    ]
    return "\n\n".join(parts) + "\n"


def _render_index(alerts: list[Alert]) -> Iterator[str]:
    yield "# Runbooks\n"
    yield "A page for each alert of `charts/kgwe/rules/alerts.yaml` and for each reason of a condition."
    yield "`python -m kgwe.monitoring` writes them; `make check` compares them with the code.\n"
    yield "## Alerts\n"
    yield "| alert | severity | meaning |\n|---|---|---|"
    for alert in alerts:
        yield f"| [{alert.name}]({alert.name}.md) | {alert.severity} | {alert.meaning} |"
    yield "\n## Reasons\n"
    yield "| reason | where | meaning |\n|---|---|---|"
    for page in sorted(reasons.PAGES, key=lambda each: each.name):
        yield f"| [{page.name}](reasons/{page.name}.md) | {page.where} | {page.meaning} |"
    yield "\nThese reasons ask for nothing:\n"
    for name, meaning in sorted(reasons.HEALTHY.items()):
        yield f"- `{name}`: {meaning}"
