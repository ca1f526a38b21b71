"""Settings of the MIG controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kgwe import errors
from kgwe.apps.mig import settings

if TYPE_CHECKING:
    from pathlib import Path


def test_flag_before_environment_before_file_before_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("cooldownSeconds: 5\ngatherSeconds: 5\nmaxConcurrentNodes: 5\n")
    monkeypatch.setenv("KGWE_MIG_GATHER_SECONDS", "6")
    monkeypatch.setenv("KGWE_MIG_MAX_CONCURRENT_NODES", "6")
    monkeypatch.setenv("KGWE_MIG_PREFERRED_PROFILES", "1g.10gb,7g.80gb")
    loaded = settings.load(file, {"max_concurrent_nodes": 7, "log_level": None})
    assert (loaded.cooldown_seconds, loaded.gather_seconds, loaded.max_concurrent_nodes) == (5, 6, 7)
    assert loaded.preferred_profiles == ("1g.10gb", "7g.80gb")
    assert loaded.log_level == "info"


@pytest.mark.parametrize(
    ("text", "said"), [("tooMuch: 1", "tooMuch"), ("[1]", "expected a mapping"), ("maxConcurrentNodes: x", "Expected")]
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(errors.Permanent, match=said):
        settings.load(file)
