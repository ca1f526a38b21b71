"""Mail over a real SMTP server: content, TLS, login, refusals, and a server that does not answer."""

from __future__ import annotations

import asyncio
import email
import email.policy
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from tests.support.builders.notifications import notification, settings
from tests.support.fakes.pki import Authority
from tests.support.fakes.receivers import MailReceiver
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.notify.channels.email import make_message
from kgwe.notify.notification import Link
from kgwe.notify.notifier import Notifier, make_channel
from kgwe.notify.secrets import Secrets

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.notify.channels.channel import Channel


def channel(port: int, **more: Any) -> Channel:
    fields = {
        "name": "mail",
        "type": "email",
        "host": "localhost",
        "port": port,
        "sender": "kgwe@example.com",
        "recipients": ["gpu@example.com"],
        "startTls": False,
    }
    return make_channel(settings(fields | more).channels[0], Secrets())


async def test_a_mail_arrives():
    async with MailReceiver().serve() as server:
        await channel(server.port).send(notification(links=(Link("Why", "https://example.com/why"),)), "")
    (envelope,) = server.mails
    assert (envelope.mail_from, envelope.rcpt_tos) == ("kgwe@example.com", ["gpu@example.com"])
    mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
    assert mail["Subject"] == "[KGWE warning] train-0 holds an idle GPU"
    assert mail["Message-ID"] == f"<{notification().id}@kgwe>"
    assert mail["Auto-Submitted"] == "auto-generated"
    text = mail.get_content()
    assert "One GPU was idle for 30 minutes." in text
    assert "About: team/Pod/train-0" in text
    assert "Why: https://example.com/why" in text


async def test_a_mail_to_an_owner_goes_to_the_owner_only():
    async with MailReceiver().serve() as server:
        await channel(server.port).send(notification(), "ann@example.com")
    assert server.mails[0].rcpt_tos == ["ann@example.com"]


async def test_tls_and_login(tmp_path: Path):
    files = Authority(tmp_path).issue("server", "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    (tmp_path / "password").write_text("geheim\n")
    receiver = MailReceiver()
    receiver.password = b"geheim"
    async with receiver.serve(tls_context=context, require_starttls=True) as server:
        secure = {"startTls": True, "username": "kgwe", "passwordFrom": {"file": str(tmp_path / "password")}}
        await channel(server.port, **secure, caFile=str(files.authority)).send(notification(), "")
        with pytest.raises(errors.Permanent, match="not trusted: set caFile"):
            await channel(server.port, **secure).send(notification(), "")
        (tmp_path / "password").write_text("wrong")
        with pytest.raises(errors.Permanent, match="answered 535") as caught:
            await channel(server.port, **secure, caFile=str(files.authority)).send(notification(), "")
    assert "wrong" not in str(caught.value)
    assert len(server.mails) == 1


@pytest.mark.parametrize(
    ("reply", "expected"), [("451 try later", errors.Transient), ("550 no such user", errors.Permanent)]
)
async def test_a_refused_recipient_is_final_or_not_as_the_server_says(reply: str, expected: type[errors.KgweError]):
    receiver = MailReceiver()
    receiver.replies.append(reply)
    async with receiver.serve() as server:
        with pytest.raises(expected, match="refused the recipients"):
            await channel(server.port).send(notification(), "")


async def test_one_refused_recipient_does_not_send_the_mail_again_to_the_others():
    receiver = MailReceiver()
    receiver.replies.append("550 no such user")
    with structlog.testing.capture_logs() as logs:
        async with receiver.serve() as server:
            await channel(server.port, recipients=["a@example.com", "b@example.com"]).send(notification(), "")
    assert server.mails[0].rcpt_tos == ["b@example.com"]
    assert [(entry["event"], entry["refused"]) for entry in logs] == [("recipients_refused", 1)]


async def test_a_server_without_tls_gets_no_mail():
    async with MailReceiver().serve() as server:
        with pytest.raises(errors.Permanent, match="STARTTLS"):
            await channel(server.port, startTls=True).send(notification(), "")
    assert server.mails == []


async def test_a_server_that_does_not_answer_delays_no_other_channel():
    fields = {"type": "email", "sender": "a@example.com", "recipients": ["b@example.com"], "startTls": False}
    with socket.create_server(("127.0.0.1", 0)) as silent, structlog.testing.capture_logs() as logs:
        deaf = {"name": "silent", "host": "127.0.0.1", "port": silent.getsockname()[1], "timeoutSeconds": 0.01}
        async with MailReceiver().serve() as server, asyncio.timeout(PATIENCE_S):
            good = {"name": "mail", "host": "127.0.0.1", "port": server.port}
            async with Notifier(settings(fields | deaf, fields | good)) as notifier:
                notifier.notify(notification())
                await notifier.flush()
    assert len(server.mails) == 1
    assert notifier.metrics.read("silent", "failed") == 1
    assert [entry["channel"] for entry in logs] == ["silent"]


async def test_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(errors.Transient, match="cannot reach localhost"):
        await channel(port).send(notification(), "")


def test_a_title_cannot_add_headers():
    message = make_message(notification(title="idle\r\nBcc: eve@example.com\ud800"), "a@example.com", ["b@example.com"])
    assert message["Bcc"] is None
    assert message["Subject"] == "[KGWE warning] idle Bcc: eve@example.com?"
