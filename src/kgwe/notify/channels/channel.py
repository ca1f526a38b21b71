"""What a channel does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kgwe.notify.notification import Notification


class Channel(Protocol):
    """Sends notifications to one system.

    `send` returns when the system has accepted the message, raises Transient when a retry may succeed, and Permanent
    when it cannot. A message may arrive twice: its id is the same then.
    """

    async def send(self, notification: Notification, target: str) -> None: ...

    async def close(self) -> None: ...
