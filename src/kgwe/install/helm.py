"""Helm: found on PATH or in the cache, or built once; and the commands of a release."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.local.host import paths
from kgwe.local.host.lock import Lock
from kgwe.local.host.progress import Progress, Silent
from kgwe.local.toolchain import binaries, build
from kgwe.local.toolchain.binaries import Found, Source, Tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def _make_tool(major: int, version: str) -> Tool:
    return Tool(
        "helm",
        version,
        f"helm{major}",
        f"helm.sh/helm/v{major}/cmd/helm",
        ("version", "--template={{.Version}}"),
        ldflags=(f"-X helm.sh/helm/v{major}/internal/version.version={version}",),
    )


NEWEST: Final = 4
TOOLS: Final = {4: _make_tool(4, "v4.3.1"), 3: _make_tool(3, "v3.22.0")}
_LOCK_TIMEOUT_S: Final = 3600.0
_RUN_TIMEOUT_S: Final = 900.0
# Some builds report no patch release.
_MAJOR: Final = re.compile(r"v?(\d+)\.\d+")


def find_helm(major: int | None = None) -> Found | None:
    """Return a Helm of this major version, or of any; None if there is none. Nothing is built."""
    for path, tool in _list_candidates():
        if tool is not None:
            found_major, version, source = int(tool.module[-1]), tool.version, Source.CACHE
        else:
            version, source = _probe(path), Source.PATH
            found_major = read_major(version)
        if found_major in ((major,) if major else TOOLS):
            return Found(path, version, source)
    return None


def ensure_helm(major: int | None = None, progress: Progress | None = None) -> Found:
    """Return a Helm of this major version; build it if there is none."""
    if found := find_helm(major):
        return found
    progress = progress or Silent()
    with Lock(paths.cache_root() / "build.lock", purpose="building Helm").hold(
        timeout_s=_LOCK_TIMEOUT_S, waiting=progress.note
    ):
        return find_helm(major) or build.build([TOOLS[major or 4]], progress)["helm"]


def read_major(version: str) -> int:
    """Return the major version; 0 if the text is no version."""
    match = _MAJOR.match(version)
    return int(match[1]) if match else 0


def _list_candidates() -> Iterator[tuple[Path, Tool | None]]:
    if on_path := shutil.which("helm"):
        yield Path(on_path), None
    for tool in TOOLS.values():
        if (path := binaries.cache_path(tool)).is_file():
            yield path, tool


def _probe(path: Path) -> str:
    try:
        command: list[str | Path] = [path, *TOOLS[4].version_args]
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


@dataclass(frozen=True)
class Helm:
    """Commands of Helm for one cluster. A failed command is Permanent, with Helm's own words."""

    binary: Path
    kubeconfig: Path | None = None
    #: settings of Helm, such as the folder of its cache
    environment: dict[str, str] = field(default_factory=dict)
    major: int = NEWEST

    def run(self, *arguments: str) -> str:
        """Run a command and return what it prints."""
        command = [str(self.binary), *arguments]
        if self.kubeconfig is not None:
            command += ["--kubeconfig", str(self.kubeconfig)]
        try:
            result = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_RUN_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment},
            )
        except subprocess.TimeoutExpired as exc:
            raise errors.Transient(f"helm {arguments[0]} did not end within {_RUN_TIMEOUT_S:.0f} s") from exc
        if result.returncode != 0:
            raise errors.Permanent(f"helm {arguments[0]}: {result.stderr.strip().removeprefix('Error: ')}")
        return result.stdout

    def list_releases(self, namespace: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("list", "--namespace", namespace, "--output", "json"))
        return found

    def render(self, chart: Path, *options: str, namespace: str = "kgwe-system", release: str = "kgwe") -> str:
        """Return the manifests of a chart, without a cluster."""
        # Without a cluster Helm takes the version that it was built for, which a build from source does not know.
        version = ("--kube-version", binaries.KUBERNETES_VERSION)
        return self.run("template", release, str(chart), "--namespace", namespace, *version, *options)


def build_options(values: Sequence[Path], settings: Sequence[str]) -> list[str]:
    """Return the options of Helm for values files and for single values."""
    options: list[str] = []
    for path in values:
        options += ["--values", str(path)]
    for each in settings:
        options += ["--set", each]
    return options
