"""Building: what is asked of Go, and what a person reads when it does not work. Go itself is a script here."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING

import pytest

from kgwe.errors import Permanent
from kgwe.local.host.progress import Lines, Silent
from kgwe.local.toolchain import binaries, build, golang
from kgwe.local.toolchain.binaries import TOOLS

if TYPE_CHECKING:
    from pathlib import Path

ETCD = TOOLS["etcd"]

GO = r"""#!/bin/sh
if [ "$1" = env ]; then echo {version}; exit 0; fi
echo "$CGO_ENABLED $GOFLAGS $*" >> {log}
pwd >> {log}; ls >> {log}
{action}
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\necho built\n' > "$2"; chmod +x "$2"
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with an empty cache and a PATH of its own (and the few tools that scripts need)."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "ls", "chmod"):
        (tools / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path


def install_go(bench: Path, *, version: str = "go1.26.8", action: str = "") -> Path:
    path = bench / "bin" / "go"
    path.write_text(GO.format(version=version, log=bench / "go.log", action=action))
    path.chmod(0o755)
    return path


def test_a_program_is_built_from_its_pinned_module_into_the_cache(bench: Path):
    install_go(bench)

    built = build.build([ETCD], Silent())

    assert built["etcd"].path == binaries.cache_path(ETCD)
    assert binaries.find().found["etcd"].path == binaries.cache_path(ETCD)
    log = (bench / "go.log").read_text()
    assert log.startswith("0 -mod=readonly build -v -trimpath -ldflags -s -w -o ")
    assert {"go.mod", "go.sum", "tools.go"} <= set(log.split())
    assert "src/kgwe" not in log  # a copy, not the installed package


def test_a_failed_build_leaves_nothing_that_looks_finished(bench: Path):
    install_go(bench, action='while [ "$1" != -o ]; do shift; done; echo half > "$2"; echo "x.go:1: broken"; exit 1')

    with pytest.raises(
        Permanent, match=r"(?s)cannot build etcd v3\.6\.6: go build failed.*x\.go:1: broken.*Run the command again"
    ):
        build.build([ETCD], Silent())

    assert list(binaries.cache_path(ETCD).parent.iterdir()) == []


def test_modules_that_cannot_be_downloaded_are_explained(bench: Path):
    install_go(bench, action='echo "go: go.etcd.io/etcd@v3.6.6: dial tcp: lookup proxy: no such host" >&2; exit 1')

    with pytest.raises(Permanent, match=r"(?s)could not be downloaded.*Check the network and `go env GOPROXY`"):
        build.build([ETCD], Silent())


def test_progress_counts_modules_and_packages(bench: Path):
    del bench
    said: list[str] = []
    narrator = build._Narrator(said.append)

    for line in ("go: downloading a v1.0.0\n", "runtime\n", "go.etcd.io/bbolt\n"):
        narrator.hear(line)

    assert said[-1] == "1 module downloaded, 2 packages compiled"


def test_plain_progress_says_when_a_step_starts_and_ends():
    stream = io.StringIO()
    with Lines(stream).step("Building etcd"):
        pass

    first, last = stream.getvalue().splitlines()
    assert first == "Building etcd ..."
    assert last.startswith("Building etcd: done in ")


def test_go_on_the_path_is_used_when_it_is_new_enough(bench: Path):
    go = install_go(bench)

    assert golang.find(Silent()) == go


def test_an_old_go_is_passed_over_for_the_one_in_the_cache(bench: Path):
    install_go(bench, version="go1.22.1")
    private = bench / "cache" / "kgwe" / "go" / golang._WHEEL.partition("==")[2] / "go" / "bin" / "go"
    private.parent.mkdir(parents=True)
    private.touch()

    assert golang.find(Silent()) == private


def test_without_go_and_without_a_package_index_the_next_step_is_named(bench: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)

    with pytest.raises(Permanent, match=r"(?s)Go is not on PATH.*Install Go 1\.26 or later, or set KUBEBUILDER"):
        golang.find(Silent())

    assert not list((bench / "cache" / "kgwe" / "go").iterdir())
