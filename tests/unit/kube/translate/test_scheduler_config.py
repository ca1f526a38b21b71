"""kube-scheduler shows a certificate to the extender, unless both are on one machine."""

from __future__ import annotations

import pytest
import yaml

from kgwe import errors
from kgwe.kube.translate import scheduler_config
from kgwe.kube.translate.scheduler_config import ClientFiles

FILES = ClientFiles("/ca.crt", "/client.crt", "/client.key")


def test_over_https_the_client_shows_a_certificate_and_checks_the_servers():
    (extender,) = yaml.safe_load(scheduler_config.render_config("https://kgwe:8888", tls=FILES))["extenders"]
    assert extender["enableHTTPS"] is True
    assert extender["tlsConfig"] == {"caFile": "/ca.crt", "certFile": "/client.crt", "keyFile": "/client.key"}


@pytest.mark.parametrize("url", ["http://127.0.0.1:8888", "http://localhost:8888", "http://[::1]:8888"])
def test_plain_http_is_for_one_machine(url: str):
    (extender,) = scheduler_config.build_config(url)["extenders"]
    assert "tlsConfig" not in extender


@pytest.mark.parametrize(
    ("url", "tls", "says"),
    [
        ("http://kgwe:8888", None, "same machine only"),
        ("http://10.0.0.1:8888", None, "same machine only"),
        ("https://kgwe:8888", None, "--ca-file, --cert-file and --key-file"),
        ("https://kgwe:8888", ClientFiles("/ca.crt", "", ""), "--ca-file, --cert-file and --key-file"),
        ("http://127.0.0.1:8888", FILES, "https:// only"),
        ("kgwe:8888", None, "bad URL"),
    ],
)
def test_what_would_let_anyone_ask_or_would_not_work_is_refused(url: str, tls: ClientFiles | None, says: str):
    with pytest.raises(errors.Permanent, match=says):
        scheduler_config.build_config(url, tls=tls)


def test_the_kubeconfig_is_in_the_file_because_the_flag_is_ignored_beside_it():
    content = scheduler_config.render_config("http://127.0.0.1:8888", kubeconfig="/etc/kubernetes/scheduler.conf")
    assert yaml.safe_load(content)["clientConnection"] == {"kubeconfig": "/etc/kubernetes/scheduler.conf"}
    assert "ignores its flag --kubeconfig" in content


def test_without_a_kubeconfig_the_service_account_of_the_pod_is_used():
    assert "clientConnection" not in scheduler_config.build_config("http://127.0.0.1:8888")
