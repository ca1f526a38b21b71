"""Settings: precedence, and errors that name the key."""

import pytest

from kgwe import errors
from kgwe.apps.scheduler import settings


def write(tmp_path, text):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return path


def test_flag_beats_environment_beats_file_beats_default(tmp_path, monkeypatch):
    path = write(tmp_path, "workers: 3\nlogLevel: error\ndefaultImage: from/file:1\n")
    monkeypatch.setenv("KGWE_SCHEDULER_WORKERS", "5")
    monkeypatch.setenv("KGWE_SCHEDULER_LOG_LEVEL", "warning")

    loaded = settings.load(path, {"log_level": "debug", "leader_elect": None})

    assert (loaded.default_image, loaded.workers, loaded.log_level) == ("from/file:1", 5, "debug")
    assert loaded.leader_elect is True


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("worker: 3", "worker"),
        ("workers: many", "workers"),
        ("- a", "expected a mapping"),
        ("workers: [", "cannot read settings"),
    ],
)
def test_a_bad_file_is_refused_and_the_error_says_where(tmp_path, text, says):
    with pytest.raises(errors.Permanent, match=says):
        settings.load(write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(errors.Permanent, match="nowhere"):
        settings.load(tmp_path / "nowhere.yaml")


def test_switches_can_be_given_by_environment(monkeypatch):
    monkeypatch.setenv("KGWE_SCHEDULER_LEADER_ELECT", "false")
    assert settings.load().leader_elect is False


# --- the extender ---------------------------------------------------------------------------------------

FILES = {
    "extender_tls_cert_file": "/tls.crt",
    "extender_tls_key_file": "/tls.key",
    "extender_tls_client_ca_file": "/ca.crt",
}


@pytest.mark.parametrize("address", ["", "127.0.0.1:8888", "127.9.9.9:0", "[::1]:8888", "localhost:8888"])
def test_without_certificates_the_extender_is_for_this_machine(address):
    assert settings.load(overrides={"extender_bind_address": address}).extender_tls is None


@pytest.mark.parametrize("address", [":8888", "0.0.0.0:8888", "[::]:8888", "10.0.0.1:8888", "kgwe.example:8888"])
def test_an_address_that_others_can_reach_needs_certificates(address):
    with pytest.raises(errors.Permanent, match="can be reached by other machines"):
        settings.load(overrides={"extender_bind_address": address})
    loaded = settings.load(overrides={"extender_bind_address": address, **FILES})
    assert loaded.extender_tls is not None
    assert loaded.extender_tls.names == {"system:kube-scheduler"}


@pytest.mark.parametrize("left_out", FILES)
def test_the_three_files_go_together(left_out):
    files = {key: path for key, path in FILES.items() if key != left_out}
    with pytest.raises(errors.Permanent, match="go together"):
        settings.load(overrides=files)


def test_somebody_must_be_let_in():
    with pytest.raises(errors.Permanent, match="extenderTlsClientNames"):
        settings.load(overrides={**FILES, "extender_tls_client_names": ()})


def test_the_default_is_reached_from_this_machine_only():
    assert settings.load().extender_bind_address == "127.0.0.1:8888"
    assert settings.load().debug_snapshot is False
