"""The programs of the control plane: which ones, which versions, where they are.

Looked for in this order, the first acceptable one wins:

    $KUBEBUILDER_ASSETS          what Kubernetes developers already have
    PATH
    the cache, bin/<version>/    where `build` puts what it built

A program found outside the cache is asked for its version: a kubectl that was installed years ago must not be
picked up silently. What was passed over is remembered, so that the reason can be shown.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kgwe.errors import Permanent
from kgwe.local.host import paths

if TYPE_CHECKING:
    from collections.abc import Mapping

KUBERNETES_VERSION = "v1.36.3"
ETCD_VERSION = "v3.6.6"
KWOK_VERSION = "v0.7.0"

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
_VERSION_TIMEOUT_S = 20.0


class Source(enum.StrEnum):
    ASSETS = "KUBEBUILDER_ASSETS"
    PATH = "PATH"
    CACHE = "cache"


@dataclass(frozen=True, slots=True)
class Tool:
    """A program, the Go module it is built from, and how it tells its version."""

    name: str
    version: str
    module: str
    package: str
    version_args: tuple[str, ...] = ("--version",)
    ldflags: tuple[str, ...] = ()

    def accepts(self, version: str) -> bool:
        """Whether another version serves as well: any patch release of the same minor."""
        found, wanted = parse_version(version), parse_version(self.version)
        return found is not None and wanted is not None and found[:2] == wanted[:2]


def _kubernetes(name: str, *version_args: str) -> Tool:
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    variables = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor}
    return Tool(
        name,
        KUBERNETES_VERSION,
        "kubernetes",
        f"k8s.io/kubernetes/cmd/{name}",
        version_args or ("--version",),
        tuple(f"-X k8s.io/component-base/version.{key}={value}" for key, value in variables.items()),
    )


TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool("etcd", ETCD_VERSION, "etcd", "go.etcd.io/etcd/server/v3"),
        _kubernetes("kube-apiserver"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kubectl", "version", "--client"),
        Tool(
            "kwok",
            KWOK_VERSION,
            "kwok",
            "sigs.k8s.io/kwok/cmd/kwok",
            ldflags=(f"-X sigs.k8s.io/kwok/pkg/consts.Version={KWOK_VERSION}",),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Found:
    path: Path
    version: str
    source: Source


@dataclass(frozen=True, slots=True)
class Search:
    """What was found, and why the rest was passed over (sentences)."""

    found: Mapping[str, Found]
    passed_over: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[Tool, ...]:
        return tuple(tool for name, tool in TOOLS.items() if name not in self.found)


@dataclass(frozen=True, slots=True)
class Binaries:
    """Every program of the control plane, ready to start."""

    found: Mapping[str, Found]

    def __post_init__(self) -> None:
        if missing := set(TOOLS) - set(self.found):
            raise Permanent(f"no binaries for {', '.join(sorted(missing))}")

    def path(self, name: str) -> Path:
        return self.found[name].path


def cache_path(tool: Tool) -> Path:
    return paths.cache_root() / "bin" / tool.version / tool.name


def find() -> Search:
    """Look for every tool; nothing is built."""
    found: dict[str, Found] = {}
    passed_over: list[str] = []
    for tool in TOOLS.values():
        for path, source in _candidates(tool):
            version = tool.version if source is Source.CACHE else probe_version(path, tool)
            if version is not None and tool.accepts(version):
                found[tool.name] = Found(path, version, source)
                break
            passed_over.append(
                f"{path} ({source}) is {version or 'of unknown version'}; "
                f"{'.'.join(tool.version.split('.')[:2])}.x is needed"
            )
    return Search(found, tuple(passed_over))


def probe_version(path: Path, tool: Tool) -> str | None:
    """Ask a program for its version; None when it does not tell."""
    try:
        result = subprocess.run(
            [path, *tool.version_args],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(result.stdout)
    return "v" + ".".join(match.groups()) if result.returncode == 0 and match else None


def parse_version(text: str) -> tuple[int, int, int] | None:
    match = _VERSION.match(text)
    if match is None:
        return None
    major, minor, patch = (int(part) for part in match.groups())
    return major, minor, patch


def _candidates(tool: Tool) -> list[tuple[Path, Source]]:
    candidates = []
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        candidates.append((Path(assets) / tool.name, Source.ASSETS))
    if on_path := shutil.which(tool.name):
        candidates.append((Path(on_path), Source.PATH))
    candidates.append((cache_path(tool), Source.CACHE))
    return [(path, source) for path, source in candidates if path.is_file() and os.access(path, os.X_OK)]
