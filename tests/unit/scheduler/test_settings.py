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
        ("workers: [", "reading settings"),
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
