"""The binaries of the control plane: their versions and locations.

They are searched in this order; the first match is used:

    $KUBEBUILDER_ASSETS          binaries of Kubernetes developers
    PATH
    the cache, bin/<version>/    binaries built by `build`

The version of a binary outside the cache is checked, so that an outdated kubectl is not used. Rejected binaries are
kept with the reason.
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
    """A binary, its Go module, and the way to query its version."""

    name: str
    version: str
    module: str
    package: str
    version_args: tuple[str, ...] = ("--version",)
    ldflags: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def accepts(self, version: str) -> bool:
        """Return whether another version is acceptable: any patch release of the same minor version."""
        found, wanted = parse_version(version), parse_version(self.version)
        return found is not None and wanted is not None and found[:2] == wanted[:2]


def make_kubernetes_tool(name: str, *version_args: str) -> Tool:
    """Return a program of Kubernetes, in the version of the control plane."""
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
        make_kubernetes_tool("kube-apiserver"),
        make_kubernetes_tool("kube-controller-manager"),
        make_kubernetes_tool("kube-scheduler"),
        make_kubernetes_tool("kubectl", "version", "--client"),
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
    """The binaries found, and why others were rejected (sentences)."""

    found: Mapping[str, Found]
    rejected: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[Tool, ...]:
        return tuple(tool for name, tool in TOOLS.items() if name not in self.found)


@dataclass(frozen=True, slots=True)
class Binaries:
    """All binaries of the control plane."""

    found: Mapping[str, Found]

    def __post_init__(self) -> None:
        if missing := set(TOOLS) - set(self.found):
            raise Permanent(f"no binaries for {', '.join(sorted(missing))}")

    def find_binary(self, name: str) -> Path:
        return self.found[name].path


def cache_path(tool: Tool) -> Path:
    return paths.cache_root() / "bin" / tool.version / tool.name


def find() -> Search:
    """Find all tools; build nothing."""
    found: dict[str, Found] = {}
    rejected: list[str] = []
    for tool in TOOLS.values():
        for path, source in _list_candidates(tool):
            version = tool.version if source is Source.CACHE else probe_version(path, tool)
            if version is not None and tool.accepts(version):
                found[tool.name] = Found(path, version, source)
                break
            rejected.append(
                f"{path} ({source}) has version {version or 'unknown'}; "
                f"{'.'.join(tool.version.split('.')[:2])}.x is needed"
            )
    return Search(found, tuple(rejected))


def probe_version(path: Path, tool: Tool) -> str | None:
    """Return the version that a program reports; None if it reports none."""
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


def _list_candidates(tool: Tool) -> list[tuple[Path, Source]]:
    candidates = []
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        candidates.append((Path(assets) / tool.name, Source.ASSETS))
    if on_path := shutil.which(tool.name):
        candidates.append((Path(on_path), Source.PATH))
    candidates.append((cache_path(tool), Source.CACHE))
    return [(path, source) for path, source in candidates if path.is_file() and os.access(path, os.X_OK)]
