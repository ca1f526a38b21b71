"""Which channels a notification goes to: by the operator's routes, and by the owner's annotation.

An annotation is written by a tenant. It can only choose among channels and targets that the operator's settings allow;
it never contains a URL that KGWE would call.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

from kgwe.notify.settings import EmailSettings, SlackSettings, WebhookSettings, is_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kgwe.notify.notification import Notification
    from kgwe.notify.settings import ChannelSettings, NotifySettings, Route

_MOST_TARGETS: Final = 5
_LONGEST_TARGET: Final = 254
_SLACK_CHANNEL: Final = re.compile(r"[#@][\w.-]{1,79}")


class Delivery(NamedTuple):
    """A channel, and for a channel with several targets which one."""

    channel: str
    target: str = ""
    """A mail address or a Slack channel; empty: the target of the channel's settings."""


def choose_deliveries(settings: NotifySettings, notification: Notification) -> list[Delivery]:
    """Return where a notification goes, without repetition."""
    found = {} if notification.is_for_owner else dict.fromkeys(_follow_routes(settings, notification))
    if notification.owner:
        allowed, _ = read_owner(settings.channels, notification.owner)
        found |= dict.fromkeys(allowed)
    return list(found)


def _follow_routes(settings: NotifySettings, notification: Notification) -> Iterator[Delivery]:
    if not settings.routes:
        yield from (Delivery(channel.name) for channel in settings.channels if _has_target(channel))
        return
    for route in settings.routes:
        if _matches(route, notification):
            yield from (Delivery(name) for name in route.channels)


def _has_target(channel: ChannelSettings) -> bool:
    """Whether a channel has a target of its own. Mail without recipients is for owners only."""
    return not isinstance(channel, EmailSettings) or bool(channel.recipients)


def _matches(route: Route, notification: Notification) -> bool:
    return (
        notification.severity.rank >= route.min_severity.rank
        and (not route.kinds or notification.kind in route.kinds)
        and (not route.namespaces or _is_allowed(notification.subject.namespace, route.namespaces))
    )


def read_owner(channels: Sequence[ChannelSettings], annotation: str) -> tuple[list[Delivery], list[str]]:
    """Return the deliveries that an annotation names, and one reason for each part that is not allowed.

    `slack:#team, email:ann@example.com, webhook:pager`
    """
    parts = [part.strip() for part in annotation.split(",") if part.strip()]
    deliveries: list[Delivery] = []
    refused = [f"only {_MOST_TARGETS} targets are used"] if len(parts) > _MOST_TARGETS else []
    for part in parts[:_MOST_TARGETS]:
        kind, _, target = part.partition(":")
        found = _find_channel(channels, kind.strip().lower(), target.strip())
        if found is None:
            refused.append(f"{part[:_LONGEST_TARGET]!r} is not a target that the settings allow")
        else:
            deliveries.append(found)
    return deliveries, refused


def _find_channel(channels: Sequence[ChannelSettings], kind: str, target: str) -> Delivery | None:
    if not target or len(target) > _LONGEST_TARGET:
        return None
    for channel in channels:
        match channel:
            case SlackSettings() if kind == "slack" and _SLACK_CHANNEL.fullmatch(target):
                is_own = target == channel.channel
                if _is_allowed(target, channel.owners):
                    return Delivery(channel.name, "" if is_own else target)
            case EmailSettings() if kind == "email" and is_address(target):
                if _is_allowed(target.lower(), channel.owners):
                    return Delivery(channel.name, target)
            case WebhookSettings() if kind == "webhook" and target == channel.name:
                if _is_allowed(target, channel.owners):
                    return Delivery(channel.name)
            case _:
                continue
    return None


def _is_allowed(text: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)
