"""Notifications over real HTTP: formats, retries, limits, secrets, and channels that do not respond."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from tests.support.builders.notifications import AT_S, notification, settings
from tests.support.fakes.receivers import Answer, HttpReceiver
from tests.support.patience import PATIENCE_S

from kgwe.notify.channels.http import read_retry_after
from kgwe.notify.notification import Link, Severity
from kgwe.notify.notifier import Notifier
from kgwe.notify.secrets import SecretKey, Secrets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kgwe.notify.settings import NotifySettings


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver().serve() as server:
        yield server


async def deliver(chosen: NotifySettings, *messages: Any, secrets: Secrets | None = None) -> Notifier:
    async with Notifier(chosen, secrets) as notifier, asyncio.timeout(PATIENCE_S):
        for message in messages:
            notifier.notify(message)
        await notifier.flush()
    return notifier


async def test_a_webhook_gets_json(receiver: HttpReceiver):
    sent = notification(links=(Link("Why", "https://example.com/why"),))
    await deliver(settings({"name": "hook", "type": "webhook", "url": f"{receiver.url}/in"}), sent)
    (request,) = receiver.requests
    assert request.path == "/in"
    assert request.headers["Idempotency-Key"] == sent.id
    assert json.loads(request.body) == {
        "id": sent.id,
        "kind": "IdleGPU",
        "severity": "warning",
        "title": "train-0 holds an idle GPU",
        "text": "One GPU was idle for 30 minutes.",
        "subject": {"kind": "Pod", "namespace": "team", "name": "train-0"},
        "key": "IdleGPU/team/train-0",
        "time": AT_S,
        "links": [{"title": "Why", "url": "https://example.com/why"}],
    }


async def test_a_webhook_with_a_key_is_signed(receiver: HttpReceiver, tmp_path: Path):
    (tmp_path / "key").write_text("s3cret\n")
    hook = {"name": "hook", "type": "webhook", "url": receiver.url, "signingKeyFrom": {"file": str(tmp_path / "key")}}
    await deliver(settings(hook), notification())
    (request,) = receiver.requests
    stamp, _, digest = request.headers["X-KGWE-Signature"].partition(",v1=")
    signed = stamp.removeprefix("t=").encode() + b"." + request.body
    assert digest == hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()


async def test_slack_gets_blocks_and_names_cannot_mention_people(receiver: HttpReceiver):
    sent = notification(text="<!channel> & co", links=(Link("Why", "https://example.com/?a=1&b=2"),))
    await deliver(settings({"name": "slack", "type": "slack", "url": receiver.url}), sent)
    message = json.loads(receiver.requests[0].body)
    assert message["text"] == "train-0 holds an idle GPU"
    (attachment,) = message["attachments"]
    header, section, context, links = attachment["blocks"]
    assert header["text"] == {"type": "plain_text", "text": "train-0 holds an idle GPU"}
    assert section["text"]["text"] == "&lt;!channel&gt; &amp; co"
    assert "team/Pod/train-0" in context["elements"][0]["text"]
    assert links["text"]["text"] == "<https://example.com/?a=1&amp;b=2|Why>"
    assert "channel" not in message


async def test_slack_texts_stay_within_the_limits_of_slack(receiver: HttpReceiver):
    sent = notification(title="t" * 500, text="x" * 9000)
    await deliver(settings({"name": "slack", "type": "slack", "url": receiver.url}), sent)
    header, section, *_ = json.loads(receiver.requests[0].body)["attachments"][0]["blocks"]
    assert len(header["text"]["text"]) == 150
    assert len(section["text"]["text"]) <= 3000


async def test_alertmanager_gets_an_alert(receiver: HttpReceiver, tmp_path: Path):
    (tmp_path / "token").write_text("t0ken")
    channel = {"name": "am", "type": "alertmanager", "url": f"{receiver.url}/", "activeSeconds": 60}
    await deliver(settings({**channel, "tokenFrom": {"file": str(tmp_path / "token")}}), notification())
    (request,) = receiver.requests
    assert request.path == "/api/v2/alerts"
    assert request.headers["Authorization"] == "Bearer t0ken"
    (alert,) = json.loads(request.body)
    assert alert["labels"] == {
        "alertname": "KGWEIdleGPU",
        "severity": "warning",
        "namespace": "team",
        "kind": "Pod",
        "name": "train-0",
        "key": "IdleGPU/team/train-0",
    }
    assert alert["startsAt"] == "2026-11-18T12:00:00+00:00"
    assert alert["endsAt"] == "2026-11-18T12:01:00+00:00"


async def test_an_alert_names_a_page_only_if_it_is_a_url(receiver: HttpReceiver):
    links = (Link("Command", "kgwe explain train-0"), Link("Why", "https://example.com/why"))
    chosen = settings({"name": "am", "type": "alertmanager", "url": receiver.url})
    await deliver(chosen, notification(links=links), notification("other", links=links[:1]))
    first, second = (json.loads(request.body)[0] for request in receiver.requests)
    assert first["generatorURL"] == "https://example.com/why"
    assert "generatorURL" not in second


async def test_a_failure_is_retried_with_the_same_id(receiver: HttpReceiver):
    receiver.answers.extend([Answer(503), Answer(429, {"Retry-After": "0"}), Answer(500)])
    notifier = await deliver(settings({"name": "hook", "type": "webhook", "url": receiver.url}), notification())
    assert len(receiver.requests) == 4
    assert len({request.headers["Idempotency-Key"] for request in receiver.requests}) == 1
    assert notifier.metrics.read("hook", "sent") == 1


@pytest.mark.parametrize("status", [302, 400, 404, 410])
async def test_a_refusal_is_final_and_a_redirect_is_not_followed(receiver: HttpReceiver, status: int):
    receiver.answers.append(Answer(status, {"Location": f"{receiver.url}/other"}))
    notifier = await deliver(settings({"name": "hook", "type": "webhook", "url": receiver.url}), notification())
    assert len(receiver.requests) == 1
    assert notifier.metrics.read("hook", "failed") == 1


async def test_attempts_end(receiver: HttpReceiver):
    receiver.answers.extend([Answer(500)] * 3)
    hook = {"name": "hook", "type": "webhook", "url": receiver.url, "attempts": 3}
    notifier = await deliver(settings(hook), notification(), notification("other"))
    assert notifier.metrics.read("hook", "failed") + notifier.metrics.read("hook", "sent") == 2
    assert not receiver.answers


async def test_the_same_message_is_sent_once_and_a_higher_severity_again(receiver: HttpReceiver):
    hook = settings({"name": "hook", "type": "webhook", "url": receiver.url})
    higher = notification(severity=Severity.CRITICAL)
    notifier = await deliver(hook, notification(), notification(at_s=AT_S + 30), higher)
    assert len(receiver.requests) == 2
    assert notifier.metrics.read("hook", "duplicate") == 1


async def test_a_message_that_was_not_delivered_is_no_repetition(receiver: HttpReceiver):
    receiver.answers.append(Answer(400))
    hook = settings({"name": "hook", "type": "webhook", "url": receiver.url})
    async with Notifier(hook) as notifier, asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            notifier.notify(notification())
            await notifier.flush()
    assert notifier.metrics.read("hook", "sent") == 1


async def test_a_channel_that_does_not_answer_delays_neither_the_caller_nor_other_channels(receiver: HttpReceiver):
    receiver.released.clear()
    with HttpReceiver().serve() as healthy:
        chosen = settings(
            {"name": "slow", "type": "webhook", "url": receiver.url, "queueSize": 2},
            {"name": "good", "type": "webhook", "url": healthy.url, "perMinute": 10_000},
        )
        async with Notifier(chosen) as notifier, asyncio.timeout(PATIENCE_S):
            for number in range(20):
                notifier.notify(notification(str(number)))
            await notifier._senders["good"].flush()
            assert len(healthy.requests) == 20
            assert notifier.metrics.read("slow", "dropped") >= 17
            assert notifier.metrics.read("slow", "sent") == 0
            receiver.released.set()
            await notifier.flush()
        # The newest messages were kept.
        assert json.loads(receiver.requests[-1].body)["subject"]["name"] == "19"


async def test_a_channel_that_nothing_listens_on_fails_after_its_attempts():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    chosen = settings({"name": "dead", "type": "webhook", "url": url, "attempts": 2})
    notifier = await deliver(chosen, notification())
    assert notifier.metrics.read("dead", "failed") == 1


async def test_the_rate_limit_delays_and_loses_nothing(receiver: HttpReceiver):
    hook = {"name": "hook", "type": "webhook", "url": receiver.url, "perMinute": 1200}
    async with Notifier(settings(hook)) as notifier, asyncio.timeout(PATIENCE_S):
        notifier._senders["hook"]._tokens = 0.0
        begin = time.monotonic()
        for number in range(5):
            notifier.notify(notification(str(number)))
        await notifier.flush()
    assert len(receiver.requests) == 5
    # A lower bound: five messages at 20 per second, the first after a twentieth of a second.
    assert time.monotonic() - begin >= 0.2


async def test_no_secret_is_logged_or_counted(receiver: HttpReceiver, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    (tmp_path / "url").write_text(f"{receiver.url}/services/T000/geheim-path")
    (tmp_path / "key").write_text("geheim-key")
    echo = Answer(400, body=b"no such hook /services/T000/geheim-path, key geheim-key")
    receiver.answers.append(echo)
    hook = {
        "name": "hook",
        "type": "webhook",
        "urlFrom": {"file": str(tmp_path / "url")},
        "signingKeyFrom": {"file": str(tmp_path / "key")},
    }
    with structlog.testing.capture_logs() as logs:
        await deliver(settings(hook), notification(), notification("other"))
    assert [request.path for request in receiver.requests] == ["/services/T000/geheim-path"] * 2
    assert [entry["event"] for entry in logs] == ["notification_failed"]
    assert "answered 400: no such hook …" in logs[0]["error"]
    assert "geheim" not in str(logs)
    assert "geheim" not in caplog.text


async def test_a_rotated_secret_is_read_again(receiver: HttpReceiver):
    keys: list[SecretKey] = []

    async def read(key: SecretKey) -> str:
        keys.append(key)
        return f"{receiver.url}/{len(keys)}"

    reference = {"secret": {"name": "hooks", "key": "url", "namespace": "kgwe"}}
    hook = settings({"name": "hook", "type": "slack", "urlFrom": reference})
    await deliver(hook, notification(), notification("other"), secrets=Secrets(read))
    assert [request.path for request in receiver.requests] == ["/1", "/2"]
    assert keys[0] == SecretKey(name="hooks", key="url", namespace="kgwe")


async def test_a_secret_that_is_missing_or_no_url_fails_without_its_value(tmp_path: Path):
    (tmp_path / "url").write_text("geheim://not a url")
    hook = {"type": "slack", "attempts": 1}
    chosen = settings(
        {"name": "missing", **hook, "urlFrom": {"file": str(tmp_path / "none")}},
        {"name": "bad", **hook, "urlFrom": {"file": str(tmp_path / "url")}},
        {"name": "kube", **hook, "urlFrom": {"secret": {"name": "a", "key": "b"}}},
    )
    with structlog.testing.capture_logs() as logs:
        await deliver(chosen, notification())
    errors = sorted(entry["error"] for entry in logs)
    assert len(errors) == 3
    assert "geheim" not in str(logs)
    assert "reads no Kubernetes Secrets" in errors[1]
    assert "No such file" in errors[2]


async def test_closing_with_messages_in_the_queue_ends(receiver: HttpReceiver):
    receiver.answers.extend([Answer(503, {"Retry-After": "3000"})] * 5)
    with structlog.testing.capture_logs() as logs:
        async with Notifier(settings({"name": "hook", "type": "webhook", "url": receiver.url})) as notifier:
            notifier.notify(notification())
            async with asyncio.timeout(PATIENCE_S):
                while notifier.metrics._retries.labels("hook")._value.get() < 1:  # noqa: ASYNC110 -- no event says so
                    await asyncio.sleep(0.001)
            await notifier.close(grace_s=0.01)
    assert {"event": "notifications_not_sent", "channel": "hook", "count": 1, "log_level": "warning"} in logs


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("5", 5.0),
        ("999999", 3600.0),
        ("Wed, 18 Nov 2026 12:00:10 GMT", 10.0),
        ("Wed, 18 Nov 2020 12:00:10 GMT", 0.0),
        ("soon", None),
        ("-1", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, expected: float | None):
    assert read_retry_after(value, AT_S) == expected
