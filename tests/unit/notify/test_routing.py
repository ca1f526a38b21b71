"""Which channels get a notification, and what an owner's annotation can and cannot choose."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.notifications import notification, settings

from kgwe.notify.notification import Severity, Subject
from kgwe.notify.notifier import Notifier
from kgwe.notify.routing import Delivery, choose_deliveries, read_owner
from kgwe.notify.settings import is_address

HOOK = {"name": "pager", "type": "webhook", "url": "https://pager.example.com/in", "owners": ["pager"]}
CLOSED = {"name": "closed", "type": "webhook", "url": "https://closed.example.com/in"}
SLACK = {
    "name": "chat",
    "type": "slack",
    "url": "https://chat.example.com/in",
    "channel": "#gpu",
    "owners": ["#ml-*", "#gpu"],
}
MAIL = {"name": "mail", "type": "email", "host": "mail", "sender": "k@example.com", "owners": ["*@example.com"]}
ALL = settings(HOOK, CLOSED, SLACK, MAIL)


def test_without_routes_every_channel_with_a_target_gets_everything():
    assert choose_deliveries(ALL, notification()) == [Delivery("pager"), Delivery("closed"), Delivery("chat")]


def test_routes_match_severity_namespace_and_kind():
    chosen = settings(
        HOOK,
        CLOSED,
        SLACK,
        routes=[
            {"channels": ["pager"], "minSeverity": "critical"},
            {"channels": ["chat"], "namespaces": ["te*"], "kinds": ["IdleGPU", "Preempted"]},
            {"channels": ["closed", "chat"], "minSeverity": "warning", "namespaces": ["team"]},
        ],
    )
    assert choose_deliveries(chosen, notification()) == [Delivery("chat"), Delivery("closed")]
    assert choose_deliveries(chosen, notification(severity=Severity.CRITICAL))[0] == Delivery("pager")
    info = notification(severity=Severity.INFO, kind="Ended")
    assert choose_deliveries(chosen, info) == []
    node = notification(subject=Subject("Node", "n-1"))
    assert choose_deliveries(chosen, node) == []


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("slack:#ml-vision", [Delivery("chat", "#ml-vision")]),
        ("slack:#gpu", [Delivery("chat")]),
        ("email:ann@example.com", [Delivery("mail", "ann@example.com")]),
        ("webhook:pager", [Delivery("pager")]),
        (" slack:#ml-a , email:Ann@Example.com ", [Delivery("chat", "#ml-a"), Delivery("mail", "Ann@Example.com")]),
        ("", []),
    ],
)
def test_an_owner_chooses_among_what_the_settings_allow(annotation: str, expected: list[Delivery]):
    assert read_owner(ALL.channels, annotation) == (expected, [])


@pytest.mark.parametrize(
    "annotation",
    [
        "webhook:https://evil.example.com/",
        "webhook:http://169.254.169.254/latest/meta-data",
        "webhook:closed",
        "webhook:chat",
        "slack:https://hooks.example.com/x",
        "slack:#general",
        "slack:#ml-a\nX: y",
        "email:eve@evil.com",
        "email:eve@evil.com@example.com",
        "email:a@example.com\r\nBcc: b@example.com",
        "email:Ann <ann@example.com>",
        "pager",
        "sms:123",
        "email:" + "a" * 300 + "@example.com",
    ],
)
def test_an_owner_reaches_nothing_else(annotation: str):
    deliveries, refused = read_owner(ALL.channels, annotation)
    assert deliveries == []
    assert len(refused) == 1
    assert "is not a target that the settings allow" in refused[0]


def test_an_annotation_has_at_most_five_targets():
    deliveries, refused = read_owner(ALL.channels, ",".join(f"email:{number}@example.com" for number in range(9)))
    assert len(deliveries) == 5
    assert refused == ["only 5 targets are used"]


@given(st.text())
def test_any_annotation_leads_to_configured_channels_only(text: str):
    names = {channel.name for channel in ALL.channels}
    for annotation in (text, f"email:{text}", f"webhook:{text}", f"slack:{text}"):
        deliveries, _ = read_owner(ALL.channels, annotation)
        assert all(delivery.channel in names and "://" not in delivery.target for delivery in deliveries)


async def test_the_owner_is_notified_besides_the_routes_and_refusals_are_returned():
    chosen = settings(HOOK, SLACK, MAIL, routes=[{"channels": ["pager"]}])
    sent = notification(owner="email:ann@example.com,webhook:pager")
    assert choose_deliveries(chosen, sent) == [Delivery("pager"), Delivery("mail", "ann@example.com")]
    notifier = Notifier(chosen)
    assert len(notifier.notify(notification(owner="webhook:http://10.0.0.1/"))) == 1
    assert notifier.metrics.read("owners", "refused") == 1
    await notifier.close()


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        ([{"name": "a", "type": "pagerduty"}], "Invalid value 'pagerduty'"),
        ([{"name": "a", "type": "webhook"}], "either url or urlFrom"),
        ([{**HOOK, "urlFrom": {"file": "/x"}}], "either url or urlFrom"),
        ([{**HOOK, "url": "file:///etc/passwd"}], "not one of http:// or https://"),
        ([{**HOOK, "url": "http://"}], "not one of http"),
        ([{**HOOK, "url": "http://host:99999/"}], "not one of http"),
        ([{**HOOK, "urll": "x"}], "unknown field `urll`"),
        ([{**HOOK, "signingKeyFrom": {}}], "either a file or a secret"),
        ([HOOK, HOOK], "two channels have the name pager"),
        ([{**HOOK, "name": ""}], "needs a name"),
        ([{**HOOK, "queueSize": 0}], "greater than 0"),
        ([{**MAIL, "sender": "Ann <a@example.com>"}], "not a mail address"),
        ([{**MAIL, "port": 0}], "not a port"),
        ([{**MAIL, "startTls": False, "passwordFrom": {"file": "/x"}}], "startTls only"),
    ],
)
def test_wrong_settings_are_refused_with_the_channel(channels, message: str):
    with pytest.raises(msgspec.ValidationError, match=message):
        settings(*channels)


def test_a_route_to_a_channel_that_cannot_take_it_is_refused():
    with pytest.raises(msgspec.ValidationError, match="nothing, which does not exist"):
        settings(HOOK, routes=[{"channels": ["nothing"]}])
    with pytest.raises(msgspec.ValidationError, match="mail, which has no recipients"):
        settings(MAIL, routes=[{"channels": ["mail"]}])


@pytest.mark.parametrize("text", ["", "a", "a@", "@b", "a@b@c", "a b@c", "a@b,c@d", "a@b\n", "ä@b"])
def test_what_is_no_address(text: str):
    assert not is_address(text)
