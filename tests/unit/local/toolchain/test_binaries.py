"""Where the programs of the control plane are looked for, and which ones are good enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kgwe.errors import Permanent
from kgwe.local.toolchain import binaries
from kgwe.local.toolchain.binaries import TOOLS, Binaries, Source

if TYPE_CHECKING:
    from pathlib import Path

SCHEDULER = TOOLS["kube-scheduler"]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Source, Path]:
    """An empty directory for each place that is searched."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return {
        Source.ASSETS: tmp_path / "assets",
        Source.PATH: tmp_path / "path",
        Source.CACHE: cache / "kgwe" / "bin" / SCHEDULER.version,
    }


def put(directory: Path, name: str, says: str, *, exit_code: int = 0) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {exit_code}\n")
    path.chmod(0o755)
    return path


def test_assets_win_over_path_and_path_over_the_cache(places: dict[Source, Path]):
    paths = {source: put(directory, SCHEDULER.name, "Kubernetes v1.36.9") for source, directory in places.items()}
    order = []
    for source in (Source.ASSETS, Source.PATH, Source.CACHE):
        found = binaries.find().found[SCHEDULER.name]
        assert found.path == paths[source]
        order.append(found.source)
        found.path.unlink()

    assert order == [Source.ASSETS, Source.PATH, Source.CACHE]
    assert SCHEDULER in binaries.find().missing


def test_a_program_of_another_minor_version_is_passed_over_with_a_reason(places: dict[Source, Path]):
    old = put(places[Source.PATH], "kubectl", "Client Version: v1.32.4")
    cached = put(places[Source.CACHE], "kubectl", "unasked")

    search = binaries.find()

    assert search.found["kubectl"].path == cached
    assert search.rejected == (f"{old} (PATH) has version v1.32.4; v1.36.x is needed",)


@pytest.mark.parametrize(
    ("says", "exit_code"),
    [
        pytest.param("hello", 0, id="no version in its answer"),
        pytest.param("Kubernetes v1.36.3", 1, id="an error"),
    ],
)
def test_a_program_that_does_not_tell_its_version_is_passed_over(places: dict[Source, Path], says: str, exit_code: int):
    put(places[Source.PATH], SCHEDULER.name, says, exit_code=exit_code)

    search = binaries.find()

    assert SCHEDULER in search.missing
    assert "has version unknown" in search.rejected[0]


def test_a_file_that_cannot_be_executed_is_not_a_program(places: dict[Source, Path]):
    put(places[Source.ASSETS], SCHEDULER.name, "Kubernetes v1.36.3").chmod(0o644)

    assert SCHEDULER in binaries.find().missing


@pytest.mark.parametrize(
    ("tool", "version", "accepted"),
    [
        pytest.param("kube-apiserver", "v1.36.0", True, id="any patch release"),
        pytest.param("kube-apiserver", "1.36.11", True, id="without the v"),
        pytest.param("kube-apiserver", "v1.36.0-rc.1", True, id="a candidate of the same minor"),
        pytest.param("kube-apiserver", "v1.35.9", False, id="an older minor"),
        pytest.param("kube-apiserver", "v1.37.0", False, id="a newer minor"),
        pytest.param("etcd", "v3.6.6", True, id="etcd"),
        pytest.param("etcd", "v3.5.21", False, id="etcd of another minor"),
        pytest.param("kwok", "unknown", False, id="no version"),
    ],
)
def test_accepted_versions(tool: str, version: str, accepted: bool):  # noqa: FBT001 -- a column of the table
    assert TOOLS[tool].accepts(version) is accepted


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        pytest.param("kube-apiserver", "Kubernetes v1.36.3", id="kubernetes"),
        pytest.param("kubectl", "Client Version: v1.36.3\nKustomize Version: v5.8.1", id="kubectl names two"),
        pytest.param("etcd", "etcd Version: 3.6.6\nGit SHA: abc\nGo Version: go1.26.8", id="etcd"),
        pytest.param("kwok", "kwok version v0.7.0 go1.26.8 (linux/amd64)", id="kwok"),
    ],
)
def test_the_version_is_read_from_what_the_program_really_prints(tmp_path: Path, tool: str, says: str):
    path = put(tmp_path, tool, says)

    assert binaries.probe_version(path, TOOLS[tool]) == TOOLS[tool].version


def test_an_incomplete_set_is_no_set():
    with pytest.raises(Permanent, match="etcd"):
        Binaries({})
