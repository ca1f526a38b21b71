"""Notifications and settings of channels, with as few words as a test needs."""

from __future__ import annotations

from typing import Any

import msgspec

from kgwe.notify.notification import Notification, Severity, Subject
from kgwe.notify.settings import NotifySettings

AT_S = 1_795_003_200.0


def notification(name: str = "train-0", **more: Any) -> Notification:
    fields: dict[str, Any] = {
        "kind": "IdleGPU",
        "severity": Severity.WARNING,
        "title": f"{name} holds an idle GPU",
        "text": "One GPU was idle for 30 minutes.",
        "subject": Subject("Pod", name, "team"),
        "key": f"IdleGPU/team/{name}",
        "at_s": AT_S,
    }
    return Notification(**(fields | more))


def settings(*channels: dict[str, Any], **more: Any) -> NotifySettings:
    """Settings as a user writes them; failures are retried at once."""
    quick = [{"backoffSeconds": 0.001, **channel} for channel in channels]
    return msgspec.convert({"channels": quick, **more}, NotifySettings)
