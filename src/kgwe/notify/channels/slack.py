"""Slack's format: an incoming webhook with blocks. Mattermost and Rocket.Chat read it too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.notify.channels.http import Poster
from kgwe.notify.notification import Severity

if TYPE_CHECKING:
    from kgwe.notify.notification import Notification
    from kgwe.notify.secrets import Secrets
    from kgwe.notify.settings import SlackSettings

_COLORS: Final = {Severity.INFO: "#2eb67d", Severity.WARNING: "#ecb22e", Severity.CRITICAL: "#e01e5a"}
# Slack's limits of a header and of a section.
_MAX_TITLE: Final = 150
_MAX_TEXT: Final = 2900


class SlackChannel:
    """Posts notifications to an incoming webhook."""

    def __init__(self, settings: SlackSettings, secrets: Secrets) -> None:
        self._poster = Poster(settings.name, settings.url, settings.url_from, secrets, settings.timeout_seconds)

    async def send(self, notification: Notification, target: str) -> None:
        await self._poster.post(msgspec.json.encode(make_message(notification, target)), {})

    async def close(self) -> None:
        await self._poster.close()


def make_message(notification: Notification, channel: str = "") -> dict[str, Any]:
    """Return the message. Names of users' objects are escaped: they cannot mention people or make links."""
    title = _cut(" ".join(notification.title.split()), _MAX_TITLE)
    facts = (
        f"*{escape(notification.severity.value)}* · {escape(notification.kind)} · `{escape(str(notification.subject))}`"
    )
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": title}},
        {"type": "section", "text": {"type": "mrkdwn", "text": _cut(escape(notification.text), _MAX_TEXT) or " "}},
        {"type": "context", "elements": [{"type": "mrkdwn", "text": _cut(facts, _MAX_TEXT)}]},
    ]
    if notification.links:
        links = " · ".join(f"<{escape(link.url)}|{escape(link.title)}>" for link in notification.links)
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": _cut(links, _MAX_TEXT)}})
    message: dict[str, Any] = {
        "text": escape(title),
        "attachments": [{"color": _COLORS[notification.severity], "blocks": blocks}],
    }
    if channel:
        message["channel"] = channel
    return message


def escape(text: str) -> str:
    """Return text with Slack's three control characters escaped."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
