"""Which Prometheus is used: the one on PATH, Debian's, the one in the cache, or a new build."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from kgwe.errors import NotFound, Permanent
from kgwe.local.prometheus import binary, server
from kgwe.local.toolchain import binaries

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache and an empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(binary, "_DEBIAN", tmp_path / "usr" / "prometheus")
    return tmp_path


def install(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'prometheus, version {version} (branch: debian/sid)'\n")
    path.chmod(0o755)
    return path


def test_the_prometheus_on_path_is_used_if_its_line_is_wanted(machine: Path):
    old = install(machine / "bin" / "prometheus", "2.42.0+ds")
    for line in (None, 2):
        found = binary.find_prometheus(line)
        assert found is not None
        assert (found.path, found.version) == (old, "v2.42.0")
    assert binary.find_prometheus(3) is None


def test_a_prometheus_outside_path_is_found_where_debian_puts_it(machine: Path):
    path = install(machine / "usr" / "prometheus", "2.53.3+ds1")
    found = binary.find_prometheus()
    assert found is not None
    assert found.path == path


def test_a_built_prometheus_is_used_from_the_cache(machine: Path):
    install(machine / "bin" / "prometheus", "2.42.0+ds")
    cached = install(binaries.cache_path(binary.TOOL), "ignored")
    found = binary.ensure_prometheus(3)
    assert (found.path, found.version) == (cached, "v3.13.5")


@pytest.mark.usefixtures("machine")
def test_line_2_is_not_built_and_the_message_says_where_to_get_it():
    assert binary.find_prometheus() is None
    with pytest.raises(NotFound, match="apt-get install prometheus"):
        binary.ensure_prometheus(2)
    with pytest.raises(Permanent, match="--version-line is 2 or 3"):
        binary.ensure_prometheus(4)


def test_a_program_that_is_no_prometheus_is_passed_over(machine: Path):
    install(machine / "bin" / "prometheus", "soon")
    assert binary.find_prometheus() is None


def test_the_configuration_finds_targets_by_the_list_of_the_exporter():
    text = server.make_configuration("http://127.0.0.1:9400/targets", interval_s=0.5, jobs={"a": {"pod": "x"}, "b": {}})
    tree = yaml.safe_load(text)
    assert tree["global"]["scrape_interval"] == "500ms"
    assert [job["job_name"] for job in tree["scrape_configs"]] == ["a", "b"]
    assert tree["scrape_configs"][0]["http_sd_configs"][0]["url"] == "http://127.0.0.1:9400/targets"
    assert tree["scrape_configs"][0]["relabel_configs"] == [{"target_label": "pod", "replacement": "x"}]
