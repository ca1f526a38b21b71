"""Secrets reach neither logs nor bundles."""

from __future__ import annotations

import json
import logging

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from kgwe.telemetry import logs
from kgwe.telemetry.redaction import REDACTED, is_secret_name, redact_text, redact_value

TOKEN = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"  # noqa: S105 - must not appear
KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIabc\n-----END EC PRIVATE KEY-----"
SECRET = "s3cr3t-Pa55"  # noqa: S105 - must not appear
TEXTS = [
    f"Authorization: Bearer {TOKEN}",
    f"GET /metrics with {TOKEN} failed",
    f"key file:\n{KEY}\nend",
    f"cannot connect to postgresql://kgwe:{SECRET}@db:5432/kgwe",
    f"password={SECRET} refused",
    f'{{"client_secret": "{SECRET}"}}',
    f"basic {SECRET}==",
    f"https://hooks.slack.com/services/T000/B000/{SECRET.replace('-', '')}",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_in_text_is_replaced(text):
    found = redact_text(text)
    assert REDACTED in found
    for secret in (TOKEN, SECRET, SECRET.replace("-", ""), "MHcCAQEEIabc"):
        assert secret not in found


@pytest.mark.parametrize("name", ["password", "slackToken", "client-key-data", "api_key", "apiKey", "Authorization"])
def test_fields_with_secret_names_are_known(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["secretName", "secretRef", "tokenReview", "keys", "namespace", "passes"])
def test_names_and_references_stay(name):
    assert not is_secret_name(name)


@given(
    st.recursive(st.text() | st.integers() | st.none(), lambda each: st.lists(each) | st.dictionaries(st.text(), each))
)
def test_any_value_is_redacted_without_error_and_twice_changes_nothing(value):
    once = redact_value(value)
    assert redact_value(once) == once


@pytest.mark.parametrize("json_lines", [True, False])
def test_no_secret_reaches_the_log(json_lines, capsys):
    logs.configure(level="info", json=json_lines)
    try:
        log = structlog.get_logger("test")
        log.info("connected", url=f"postgresql://kgwe:{SECRET}@db/kgwe", token=TOKEN, more={"password": SECRET})
        log.warning("refused", reply=f"to Bearer {TOKEN}")
        logging.getLogger("library").warning("Authorization: Bearer %s", TOKEN)
        log.error("failed", exc_info=ValueError(f"password={SECRET}"))
    finally:
        structlog.reset_defaults()
    said = capsys.readouterr().err
    assert "connected" in said
    assert TOKEN not in said
    if json_lines:
        assert SECRET not in said
        assert all(json.loads(line) for line in said.splitlines())
