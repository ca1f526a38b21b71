"""Settings of notifications: channels, and which of them get what."""

from __future__ import annotations

from collections import Counter
from typing import Final
from urllib.parse import urlsplit

import msgspec

from kgwe.notify.notification import Severity
from kgwe.notify.secrets import SecretReference  # noqa: TC001 -- msgspec reads annotations at run time

SMTP_PORT: Final = 587
_HIGHEST_PORT: Final = 65535


class _Channel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What all channels have."""

    name: str
    owners: tuple[str, ...] = ()
    """What owners may name in their annotation: patterns such as `#ml-*` or `*@example.com`; empty: nothing."""
    queue_size: int = 1000
    """Messages that wait; one more drops the oldest."""
    repeat_seconds: float = 3600.0
    """The same message again within this time is not sent."""
    per_minute: int = 30
    attempts: int = 8
    timeout_seconds: float = 10.0
    backoff_seconds: float = 1.0

    def _check(self) -> None:
        if not self.name:
            raise ValueError("a channel needs a name")
        numbers = (self.queue_size, self.per_minute, self.attempts, self.timeout_seconds, self.backoff_seconds)
        if min(numbers) <= 0 or self.repeat_seconds < 0:
            raise ValueError(f"channel {self.name}: sizes, counts and times must be greater than 0")


class _HttpChannel(_Channel, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    url: str = ""
    url_from: SecretReference | None = None

    def __post_init__(self) -> None:
        self._check()
        if bool(self.url) == (self.url_from is not None):
            raise ValueError(f"channel {self.name}: give either url or urlFrom")
        if self.url:
            check_url(self.url, self.name)


class WebhookSettings(
    _HttpChannel, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", tag_field="type", tag="webhook"
):
    """JSON by POST to a URL."""

    signing_key_from: SecretReference | None = None
    """With it every request has a signature."""


class SlackSettings(
    _HttpChannel, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", tag_field="type", tag="slack"
):
    """An incoming webhook of Slack, or of a system with the same format."""

    channel: str = ""
    """Its channel, such as `#gpu-alerts`: owners may name it if `owners` allows."""


class EmailSettings(
    _Channel, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", tag_field="type", tag="email"
):
    """Mail by SMTP."""

    host: str
    port: int = SMTP_PORT
    sender: str
    recipients: tuple[str, ...] = ()
    start_tls: bool = True
    ca_file: str = ""
    username: str = ""
    password_from: SecretReference | None = None

    def __post_init__(self) -> None:
        self._check()
        if not 0 < self.port <= _HIGHEST_PORT:
            raise ValueError(f"channel {self.name}: {self.port} is not a port")
        for address in (self.sender, *self.recipients):
            if not is_address(address):
                raise ValueError(f"channel {self.name}: {address!r} is not a mail address")
        if self.password_from is not None and not self.start_tls:
            raise ValueError(f"channel {self.name}: a password is sent with startTls only")


class AlertmanagerSettings(
    _HttpChannel,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename="camel",
    tag_field="type",
    tag="alertmanager",
):
    """An Alertmanager, by its API v2."""

    token_from: SecretReference | None = None
    active_seconds: float = 7200.0
    """An alert ends after this time unless it is sent again: longer than `repeat_seconds`, or alerts flap."""


ChannelSettings = WebhookSettings | SlackSettings | EmailSettings | AlertmanagerSettings


class Route(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which notifications go to some channels. Empty lists match everything."""

    channels: tuple[str, ...]
    min_severity: Severity = Severity.INFO
    namespaces: tuple[str, ...] = ()
    """Patterns, such as `team-*`."""
    kinds: tuple[str, ...] = ()


class NotifySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Channels and routes. Without a route every channel gets every notification."""

    channels: tuple[ChannelSettings, ...] = ()
    routes: tuple[Route, ...] = ()

    def __post_init__(self) -> None:
        counts = Counter(channel.name for channel in self.channels)
        for name, count in counts.items():
            if count > 1:
                raise ValueError(f"two channels have the name {name}")
        for_owners = {
            channel.name for channel in self.channels if isinstance(channel, EmailSettings) and not channel.recipients
        }
        for route in self.routes:
            for name in route.channels:
                if name not in counts:
                    raise ValueError(f"a route names the channel {name}, which does not exist")
                if name in for_owners:
                    raise ValueError(f"a route names the channel {name}, which has no recipients")


def check_url(url: str, name: str) -> None:
    """Refuse what is not an http or https URL; ValueError without the URL, which may be a secret."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid or any(character.isspace() for character in url):
        raise ValueError(f"channel {name}: its URL is not one of http:// or https://")


def is_address(text: str) -> bool:
    """Whether a text is one plain mail address: no display name, no second address, no control characters."""
    name, at, domain = text.partition("@")
    return (
        bool(name and at and domain)
        and text.isascii()
        and text.isprintable()
        and not any(character in text[len(name) + 1 :] for character in "@")
        and not any(character in ' ,;:<>()[]"\\' for character in text)
    )
