"""The directories of local clusters.

${XDG_CACHE_HOME:-~/.cache}/kgwe/            binaries and the Go toolchain; safe to delete, shared by all clusters
${XDG_STATE_HOME:-~/.local/state}/kgwe/      one directory per cluster below local/; KGWE_STATE_DIR replaces it
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from kgwe.errors import Permanent

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


def cache_root() -> Path:
    return _base_directory("XDG_CACHE_HOME", ".cache") / "kgwe"


def state_root() -> Path:
    if override := os.environ.get("KGWE_STATE_DIR"):
        return Path(override).absolute()
    return _base_directory("XDG_STATE_HOME", ".local/state") / "kgwe"


def cluster_directory(name: str, root: Path | None = None) -> Path:
    """Return the directory of a cluster; it need not exist."""
    if not _NAME.fullmatch(name):
        raise Permanent(
            f"{name!r} is not a valid cluster name: use at most 40 lower-case letters, digits and dashes, "
            "starting and ending with a letter or digit"
        )
    return (root or state_root()) / "local" / name


def cluster_names(root: Path | None = None) -> list[str]:
    """Return the names of all clusters with a directory, running or not."""
    directory = (root or state_root()) / "local"
    if not directory.is_dir():
        return []
    return sorted(entry.name for entry in directory.iterdir() if entry.is_dir() and _NAME.fullmatch(entry.name))


def _base_directory(variable: str, default: str) -> Path:
    # The XDG specification requires ignoring relative values.
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else Path.home() / default
