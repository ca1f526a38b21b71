"""The notifier of a process: takes notifications and hands them to the channels that want them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Self

from kgwe.notify.channels.alertmanager import AlertmanagerChannel
from kgwe.notify.channels.email import EmailChannel
from kgwe.notify.channels.slack import SlackChannel
from kgwe.notify.channels.webhook import WebhookChannel
from kgwe.notify.metrics import NotifyMetrics
from kgwe.notify.routing import choose_deliveries, read_owner
from kgwe.notify.secrets import Secrets
from kgwe.notify.sender import Sender
from kgwe.notify.settings import AlertmanagerSettings, EmailSettings, SlackSettings, WebhookSettings

if TYPE_CHECKING:
    from types import TracebackType

    from kgwe.notify.channels.channel import Channel
    from kgwe.notify.notification import Notification
    from kgwe.notify.settings import ChannelSettings, NotifySettings

_OWNERS: Final = "owners"


class Notifier:
    """Sends notifications. `notify` returns at once, whatever state the channels are in."""

    def __init__(
        self, settings: NotifySettings, secrets: Secrets | None = None, metrics: NotifyMetrics | None = None
    ) -> None:
        self._settings = settings
        self.metrics = metrics or NotifyMetrics()
        secrets = secrets or Secrets()
        self._senders = {
            channel.name: Sender(channel, make_channel(channel, secrets), secrets, self.metrics)
            for channel in settings.channels
        }

    def start(self) -> None:
        """Begin to send. Call it in the thread of the event loop."""
        for sender in self._senders.values():
            sender.start()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def notify(self, notification: Notification) -> list[str]:
        """Queue a notification for its channels; return why parts of the owner's annotation are not used.

        Call it in the thread of the event loop.
        """
        _, refused = read_owner(self._settings.channels, notification.owner)
        for _ in refused:
            self.metrics.count(_OWNERS, "refused")
        for delivery in choose_deliveries(self._settings, notification):
            self._senders[delivery.channel].put(notification, delivery.target)
        return refused

    async def flush(self) -> None:
        """Wait until every queue is empty."""
        await asyncio.gather(*(sender.flush() for sender in self._senders.values()))

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop; with a grace period, first wait that long for the queues to become empty."""
        if grace_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self.flush()
        await asyncio.gather(*(sender.close() for sender in self._senders.values()))


def make_channel(settings: ChannelSettings, secrets: Secrets) -> Channel:
    """Return the channel of a type."""
    match settings:
        case WebhookSettings():
            return WebhookChannel(settings, secrets)
        case SlackSettings():
            return SlackChannel(settings, secrets)
        case EmailSettings():
            return EmailChannel(settings, secrets)
        case AlertmanagerSettings():
            return AlertmanagerChannel(settings, secrets)
