"""Reads the logs of a cluster's processes."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, TextIO

from kgwe.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kgwe.local.cluster.components import Layout

AUDIT = "audit"
_POLL_S = 0.2


def log_files(layout: Layout) -> dict[str, Path]:
    """Return all logs by component, including the audit log."""
    files = {path.stem: path for path in sorted((layout.directory / "logs").glob("*.log"))}
    if layout.audit_log.exists():
        files[AUDIT] = layout.audit_log
    return files


def select(layout: Layout, component: str | None) -> dict[str, Path]:
    """Return the requested log, or those of all processes (without the audit log)."""
    files = log_files(layout)
    if component is None:
        return {name: path for name, path in files.items() if name != AUDIT}
    if component not in files:
        known = ", ".join(files) or "none, because the cluster was never started"
        raise NotFound(f"no log of {component!r}; available logs: {known}")
    return {component: files[component]}


def last_lines(path: Path, count: int) -> list[str]:
    with path.open(errors="replace") as stream:
        return [line.rstrip("\n") for line in deque(stream, maxlen=count)]


def follow(files: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Yield new lines of the files; ends when none of the files exists any more."""
    streams: dict[str, TextIO] = {}
    pending = dict.fromkeys(files, "")
    try:
        for name, path in files.items():
            streams[name] = path.open(errors="replace")
            streams[name].seek(0, 2)
        while any(path.exists() for path in files.values()):
            idle = True
            for name, stream in streams.items():
                *lines, pending[name] = (pending[name] + stream.read()).split("\n")
                idle = idle and not lines
                yield from ((name, line) for line in lines)
            if idle:
                time.sleep(_POLL_S)
    finally:
        for stream in streams.values():
            stream.close()
