"""Sends the messages of one channel: one at a time, at most so many in a minute, again after failures."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.model.units.backoff import delay_s
from kgwe.notify.outbox import Message, Outbox

if TYPE_CHECKING:
    from kgwe.notify.channels.channel import Channel
    from kgwe.notify.metrics import NotifyMetrics
    from kgwe.notify.notification import Notification
    from kgwe.notify.secrets import Secrets
    from kgwe.notify.settings import ChannelSettings

_MINUTE_S: Final = 60.0
_log = structlog.get_logger(__name__)


class Sender:
    """The queue and the task of one channel. `put` never waits."""

    def __init__(self, settings: ChannelSettings, channel: Channel, secrets: Secrets, metrics: NotifyMetrics) -> None:
        self.name = settings.name
        self._settings = settings
        self._channel = channel
        self._secrets = secrets
        self._metrics = metrics
        self._outbox = Outbox(settings.queue_size, settings.repeat_seconds)
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._tokens = float(settings.per_minute)
        self._refilled = time.monotonic()
        metrics.watch_queue(self.name, lambda: len(self._outbox))

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"notify {self.name}")

    def put(self, notification: Notification, target: str) -> None:
        """Queue a message, unless it is a repetition. A full queue drops its oldest message."""
        message, now = Message(notification, target), time.monotonic()
        if self._outbox.is_repeated(message, now):
            self._metrics.count(self.name, "duplicate")
            return
        self._count_dropped(self._outbox.put(message, now))
        self._idle.clear()
        self._wake.set()

    async def flush(self) -> None:
        """Wait until the queue is empty."""
        await self._idle.wait()

    async def close(self) -> None:
        """Stop sending. Messages that still wait are counted and lost."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._outbox:
            _log.warning("notifications_not_sent", channel=self.name, count=len(self._outbox))
        await self._channel.close()

    async def _run(self) -> None:
        while True:
            message = self._outbox.take(time.monotonic())
            if message is not None:
                await self._wait_for_token()
                await self._send(message)
                continue
            due = self._outbox.next_due()
            if due is None:
                self._idle.set()
            self._wake.clear()
            wait_s = None if due is None else max(due - time.monotonic(), 0.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    async def _wait_for_token(self) -> None:
        """Wait until the rate limit allows one more message."""
        per_s = self._settings.per_minute / _MINUTE_S
        now = time.monotonic()
        self._tokens = min(self._tokens + (now - self._refilled) * per_s, float(self._settings.per_minute))
        self._refilled = now
        if self._tokens < 1:
            await asyncio.sleep((1 - self._tokens) / per_s)
        self._tokens -= 1

    async def _send(self, message: Message) -> None:
        message.attempts += 1
        try:
            await self._channel.send(message.notification, message.target)
        except errors.Transient as exc:
            self._retry(message, exc)
        except errors.KgweError as exc:
            self._give_up(message, exc)
        except Exception as exc:  # noqa: BLE001 -- one bad message must not end the channel
            self._give_up(message, exc)
        else:
            self._metrics.count(self.name, "sent")

    def _retry(self, message: Message, exc: errors.Transient) -> None:
        if message.attempts >= self._settings.attempts:
            self._give_up(message, exc)
            return
        wait_s = delay_s(self._settings.backoff_seconds, message.attempts - 1, random.random())  # noqa: S311 -- jitter
        wait_s = max(wait_s, exc.retry_after_s or 0.0)
        self._metrics.count_retry(self.name)
        self._count_dropped(self._outbox.put_back(message, time.monotonic() + wait_s))

    def _give_up(self, message: Message, exc: Exception) -> None:
        self._outbox.forget(message)
        self._metrics.count(self.name, "failed")
        _log.warning(
            "notification_failed",
            channel=self.name,
            kind=message.notification.kind,
            subject=str(message.notification.subject),
            attempts=message.attempts,
            error=self._secrets.redact(f"{type(exc).__name__}: {exc}"),
        )

    def _count_dropped(self, dropped: Message | None) -> None:
        if dropped is not None:
            self._metrics.count(self.name, "dropped")
