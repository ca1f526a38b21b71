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
    f"AWS_SECRET_ACCESS_KEY={SECRET}",
    f"run with WANDB_API_KEY={SECRET} HF_HOME=/x",
    f"PGPASSWORD='{SECRET} {SECRET}' psql",
    f"--aws-secret-access-key {SECRET} --region x",
    f'args: ["--password","{SECRET}"]',
    f'{{\\"args\\": [\\"--password\\", \\"{SECRET}\\"]}}',
    f"args:\n- --password\n- {SECRET}\n",
    f"curl -u user:{SECRET} https://example.com",
    f"curl --user 'user:{SECRET}' https://example.com",
    f"mysql -h db -uroot -p{SECRET} jobs",
    f"Authorization: token {SECRET}",
    f"curl -H 'authorization: ApiKey {SECRET}' x",
    f"X-Auth-Key: {SECRET}",
    f"{{name: X-Auth-Key, value: {SECRET}}}",
    f'{{"name": "X-Auth-Key", "value": "{SECRET}"}}',
    f"- name: X-Auth-Key\n  value: {SECRET}\n",
    f"https://discord.com/api/webhooks/123/{SECRET}",
    f"https://example.webhook.office.com/webhookb2/{SECRET}@x/IncomingWebhook/y",
    f"https://chat.example.com/hooks/{SECRET}",
    f"https://hooks.example.com/a/{SECRET}",
    f"https://prod.logic.azure.com/invoke?api-version=1&sig={SECRET}",
    f"the password is {SECRET}, I think",
    f"password was: '{SECRET}'",
]
# Put together here, so that no scanner takes them for real ones.
PREFIXED = [
    prefix + "Ab3" * 8 for prefix in ("hf_", "ghp_", "gho_", "github_" + "pat_", "glpat-", "xoxb-", "sk-", "npm_")
]
PLAIN = [
    "The token is expired: log in again.",
    "Download with hf_transfer and hf_hub_download.",
    "https://kgwe-webhook.kgwe-system.svc:443/webhooks/mutate refused",
    "pod kgwe-system/kgwe-cost-0 -p 8080, --port 9090, keys: 3",
    "secretName: db; tokens=12",
]
COMMANDS = [
    ["train", "--password", SECRET],
    ["train", "--aws-secret-access-key", SECRET, "--steps", "5"],
    ["train", f"--wandb-key={SECRET}"],
    ["curl", "-u", f"user:{SECRET}"],
    ["/usr/bin/mysql", "-h", "db", f"-p{SECRET}"],
    ["sshpass", "-p", SECRET, "ssh", "host"],
    ["env", f"AWS_SECRET_ACCESS_KEY={SECRET}", "train"],
    ["curl", "-H", f"Authorization: token {SECRET}"],
    ["sh", "-c", f"mysql -p{SECRET} < dump"],
]


@pytest.mark.parametrize("token", PREFIXED)
def test_tokens_of_known_services_are_replaced(token):
    assert redact_text(f"got {token}, again {token}") == f"got {REDACTED}, again {REDACTED}"


@pytest.mark.parametrize("text", PLAIN)
def test_text_without_secrets_stays(text):
    assert redact_text(text) == text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_secret_of_a_command_line_is_replaced(command):
    for found in (redact_value({"args": command})["args"], redact_text(json.dumps(command))):
        assert REDACTED in str(found)
        assert SECRET not in str(found)
        assert command[0] in str(found)


@pytest.mark.parametrize("name", ["X-Auth-Key", "WANDB_API_KEY", "SSH_KEY", "DB_PASS", "MYSQL_PWD", "PGPASSWORD"])
def test_the_value_of_a_pair_with_a_secret_name_is_replaced(name):
    assert redact_value([{"name": name, "value": SECRET}]) == [{"name": name, "value": REDACTED}]


def test_other_pairs_and_arguments_stay():
    value = {"env": [{"name": "STEPS", "value": "5"}], "args": ["mpirun", "-p", "8", "-u", "--token-file", "/run/t"]}
    assert redact_value(value) == value


_PIECES = [
    "password",
    "=",
    ":",
    " ",
    "\n",
    '"',
    "'",
    "\\",
    "--",
    "-u",
    "-p",
    "mysql ",
    "x",
    SECRET,
    "://",
    "token is ",
    ",",
]


@given(st.lists(st.sampled_from(_PIECES), max_size=12).map("".join), st.sampled_from(["", " ", "\n", "; ", "("]))
def test_what_surrounds_an_assignment_does_not_save_its_secret(before, apart):
    assert "Pl4nted" not in redact_text(f"{before}{apart}WANDB_API_KEY=Pl4nted")


@pytest.mark.parametrize(
    "piece",
    [
        "a.",
        "eyJ-",
        "mysql ",
        "--",
        "-u ",
        "password ",
        "password=",
        "name: ",
        "https://a/",
        "hook/",
        "\\",
        " ",
        "\n",
        "token is ",
    ],
)
def test_long_texts_of_one_piece_are_read_in_linear_time(piece):
    """A pattern in quadratic time would take very long here."""
    redact_text(f"--password{piece * 20_000}")


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
