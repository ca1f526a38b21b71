"""kube-scheduler shows a certificate to the extender, unless both are on one machine."""

from __future__ import annotations

import pytest
import yaml

from kgwe import errors
from kgwe.kube import scheduler_configuration
from kgwe.kube.scheduler_configuration import ClientFiles

FILES = ClientFiles("/ca.crt", "/client.crt", "/client.key")


def test_over_https_the_client_shows_a_certificate_and_checks_the_servers():
    (extender,) = yaml.safe_load(scheduler_configuration.text("https://kgwe:8888", tls=FILES))["extenders"]
    assert extender["enableHTTPS"] is True
    assert extender["tlsConfig"] == {"caFile": "/ca.crt", "certFile": "/client.crt", "keyFile": "/client.key"}


@pytest.mark.parametrize("url", ["http://127.0.0.1:8888", "http://localhost:8888", "http://[::1]:8888"])
def test_plain_http_is_for_one_machine(url: str):
    (extender,) = scheduler_configuration.document(url)["extenders"]
    assert "tlsConfig" not in extender


@pytest.mark.parametrize(
    ("url", "tls", "says"),
    [
        ("http://kgwe:8888", None, "same machine only"),
        ("http://10.0.0.1:8888", None, "same machine only"),
        ("https://kgwe:8888", None, "name all three files"),
        ("https://kgwe:8888", ClientFiles("/ca.crt", "", ""), "name all three files"),
        ("http://127.0.0.1:8888", FILES, "https:// only"),
        ("kgwe:8888", None, "bad URL"),
    ],
)
def test_what_would_let_anyone_ask_or_would_not_work_is_refused(url: str, tls: ClientFiles | None, says: str):
    with pytest.raises(errors.Permanent, match=says):
        scheduler_configuration.document(url, tls=tls)
