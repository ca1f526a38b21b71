"""Alertmanager's API v2. Alertmanager groups, silences and routes; PagerDuty and others are reached through it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.notify.channels.http import Poster

if TYPE_CHECKING:
    from kgwe.notify.notification import Notification
    from kgwe.notify.secrets import Secrets
    from kgwe.notify.settings import AlertmanagerSettings

_PATH: Final = "/api/v2/alerts"


class AlertmanagerChannel:
    """Posts notifications as alerts."""

    def __init__(self, settings: AlertmanagerSettings, secrets: Secrets) -> None:
        self._settings = settings
        self._secrets = secrets
        self._poster = Poster(settings.name, settings.url, settings.url_from, secrets, settings.timeout_seconds)

    async def send(self, notification: Notification, target: str) -> None:  # noqa: ARG002 -- one target: the URL
        headers = {}
        if self._settings.token_from is not None:
            headers["Authorization"] = f"Bearer {await self._secrets.read(self._settings.token_from)}"
        alert = make_alert(notification, self._settings.active_seconds)
        await self._poster.post(msgspec.json.encode([alert]), headers, path=_PATH)

    async def close(self) -> None:
        await self._poster.close()


def make_alert(notification: Notification, active_s: float) -> dict[str, Any]:
    """Return the alert. Its labels are its identity: the same key is the same alert again."""
    subject = notification.subject
    labels = {
        "alertname": f"KGWE{notification.kind}",
        "severity": notification.severity.value,
        "namespace": subject.namespace,
        "kind": subject.kind,
        "name": subject.name,
        "key": notification.key,
    }
    alert: dict[str, Any] = {
        # An empty label is the same as none, and some versions refuse it.
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {"summary": notification.title, "description": notification.text},
        "startsAt": _format_time(notification.at_s),
        "endsAt": _format_time(notification.at_s + active_s),
    }
    url = next((link.url for link in notification.links if link.url.startswith(("http://", "https://"))), "")
    if url:
        # Alertmanager refuses the whole alert if this is not a URI.
        alert["generatorURL"] = url
    return alert


def _format_time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat()
