"""The Prometheus binary: found on PATH, as Debian's package, or built once into the cache.

Two version lines are supported. Line 2 is what distributions ship; it is not built. Line 3 is built from its Go module,
without the user interface and without service discovery of clouds, which halves the build.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe.errors import NotFound, Permanent
from kgwe.local.host import paths
from kgwe.local.host.lock import Lock
from kgwe.local.host.progress import Progress, Silent
from kgwe.local.toolchain import binaries, build
from kgwe.local.toolchain.binaries import Found, Source, Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

# The Go module of Prometheus 3.13.5 is v0.313.5.
TOOL: Final = Tool(
    "prometheus",
    "v3.13.5",
    "prometheus",
    "github.com/prometheus/prometheus/cmd/prometheus",
    ldflags=("-X github.com/prometheus/common/version.Version=3.13.5",),
    tags=("netgo", "remove_all_sd"),
)
PROMTOOL: Final = Tool(
    "promtool",
    TOOL.version,
    TOOL.module,
    "github.com/prometheus/prometheus/cmd/promtool",
    ldflags=TOOL.ldflags,
    tags=TOOL.tags,
)
LINES: Final = (2, 3)
BUILT_LINE: Final = 3
_DEBIAN: Final = Path("/usr/bin/prometheus")
_LOCK_TIMEOUT_S: Final = 3600.0


def find_prometheus(line: int | None = None) -> Found | None:
    """Return a Prometheus of a version line, or of any; None if there is none. Nothing is built."""
    for path, source in _list_candidates():
        version = TOOL.version if source is Source.CACHE else binaries.probe_version(path, TOOL)
        parsed = binaries.parse_version(version) if version is not None else None
        if version is not None and parsed is not None and parsed[0] in ((line,) if line else LINES):
            return Found(path, version, source)
    return None


def ensure_prometheus(line: int | None = None, progress: Progress | None = None) -> Found:
    """Return a Prometheus of a version line; build 3.x if there is none."""
    if line is not None and line not in LINES:
        raise Permanent(f"there is no Prometheus {line}.x here; --version-line is 2 or 3")
    if found := find_prometheus(line):
        return found
    if line not in {None, BUILT_LINE}:
        raise NotFound(
            f"Prometheus {line}.x is not on this machine and only 3.x is built;"
            " install it (Debian: `apt-get install prometheus`), or use --version-line 3"
        )
    progress = progress or Silent()
    with Lock(paths.cache_root() / "build.lock", purpose="building Prometheus").hold(
        timeout_s=_LOCK_TIMEOUT_S, waiting=progress.note
    ):
        return find_prometheus(BUILT_LINE) or build.build([TOOL], progress)[TOOL.name]


def find_promtool() -> Path | None:
    """Return promtool from PATH or the cache; None if there is none. Nothing is built."""
    on_path = shutil.which(PROMTOOL.name)
    cached = binaries.cache_path(PROMTOOL)
    return Path(on_path) if on_path else cached if cached.is_file() else None


def ensure_promtool(progress: Progress | None = None) -> Path:
    """Return promtool; build it if there is none."""
    if found := find_promtool():
        return found
    progress = progress or Silent()
    with Lock(paths.cache_root() / "build.lock", purpose="building promtool").hold(
        timeout_s=_LOCK_TIMEOUT_S, waiting=progress.note
    ):
        return find_promtool() or build.build([PROMTOOL], progress)[PROMTOOL.name].path


def _list_candidates() -> Iterator[tuple[Path, Source]]:
    on_path = shutil.which(TOOL.name)
    places = [Path(on_path)] if on_path else []
    for path in dict.fromkeys([*places, _DEBIAN]):
        if path.is_file() and os.access(path, os.X_OK):
            yield path, Source.PATH
    if (cached := binaries.cache_path(TOOL)).is_file():
        yield cached, Source.CACHE
