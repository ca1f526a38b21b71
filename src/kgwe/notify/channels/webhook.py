"""The generic webhook: JSON by POST, with a signature if there is a key."""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.notify.channels.http import Poster

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.notify.notification import Notification
    from kgwe.notify.secrets import Secrets
    from kgwe.notify.settings import WebhookSettings

SIGNATURE: Final = "X-KGWE-Signature"


class WebhookChannel:
    """Posts notifications as JSON."""

    def __init__(self, settings: WebhookSettings, secrets: Secrets, now: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._secrets = secrets
        self._now = now
        self._poster = Poster(settings.name, settings.url, settings.url_from, secrets, settings.timeout_seconds)

    async def send(self, notification: Notification, target: str) -> None:  # noqa: ARG002 -- one target: the URL
        body = msgspec.json.encode(make_payload(notification))
        headers = {"Idempotency-Key": notification.id}
        if self._settings.signing_key_from is not None:
            key = await self._secrets.read(self._settings.signing_key_from)
            headers[SIGNATURE] = sign(key, int(self._now()), body)
        await self._poster.post(body, headers)

    async def close(self) -> None:
        await self._poster.close()


def make_payload(notification: Notification) -> dict[str, Any]:
    """Return the JSON of a notification. Fields are added over time, never changed."""
    subject = notification.subject
    return {
        "id": notification.id,
        "kind": notification.kind,
        "severity": notification.severity.value,
        "title": notification.title,
        "text": notification.text,
        "subject": {"kind": subject.kind, "namespace": subject.namespace, "name": subject.name},
        "key": notification.key,
        "time": notification.at_s,
        "links": [{"title": link.title, "url": link.url} for link in notification.links],
    }


def sign(key: str, at_s: int, body: bytes) -> str:
    """Return `t=<unix time>,v1=<HMAC-SHA256 of "time.body">`: the time keeps an old request from being sent again."""
    digest = hmac.new(key.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"
