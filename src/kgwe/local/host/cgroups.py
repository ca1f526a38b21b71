"""A control group of our own in every hierarchy of the machine (cgroup v1, v2 or both), with everything below it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe.errors import Permanent

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOUNTS: Final = Path("/proc/self/mounts")
_REMOVE_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.05
_V2: Final = "cgroup2"
_CONTROLLERS: Final = ("cpuset", "cpu", "io", "memory", "pids")


def list_hierarchies(mounts: str | None = None) -> list[tuple[Path, str]]:
    """Return (mount point, type) of each hierarchy; the type is cgroup or cgroup2."""
    text = _MOUNTS.read_text() if mounts is None else mounts
    rows = (line.split() for line in text.splitlines())
    return [(Path(row[1]), row[2]) for row in rows if row[2] in ("cgroup", _V2)]


def create(name: str) -> None:
    """Create the group where containers are limited: in all v1 hierarchies, or in v2 if there is no v1."""
    hierarchies = list_hierarchies()
    if not hierarchies:
        raise Permanent("no cgroup hierarchy is mounted; mount one at /sys/fs/cgroup")
    first = [point for point, kind in hierarchies if kind != _V2]
    try:
        for point in first:
            (point / name).mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):
                # A group without processors and memory nodes accepts no process.
                if (point / name / setting).exists():
                    (point / name / setting).write_text((point / setting).read_text())
        if not first:
            _create_v2(hierarchies[0][0], name)
    except OSError as exc:
        raise Permanent(f"cannot create the cgroup {name}: {exc}") from exc


def _create_v2(point: Path, name: str) -> None:
    there = (point / "cgroup.controllers").read_text().split()
    for folder in (point, point / name):
        folder.mkdir(exist_ok=True)
        for controller in (each for each in _CONTROLLERS if each in there):
            with suppress(OSError):  # some machines keep a controller for themselves
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def remove(name: str) -> None:
    """Kill all processes of the group, and remove it. Removing a group that does not exist is no error."""
    deadline = time.monotonic() + _REMOVE_TIMEOUT_S
    while True:
        left = [point / name for point, _ in list_hierarchies() if (point / name).is_dir()]
        if not left:
            return
        for pid in {pid for root in left for pid in _list_processes(root)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for folder in (folder for root in left for folder in _list_deepest_first(root)):
            with suppress(OSError):  # a killed process leaves its group a moment later
                folder.rmdir()
        if time.monotonic() > deadline:
            raise Permanent(f"processes in {', '.join(map(str, left))} do not end; see `cat {left[0]}/cgroup.procs`")
        time.sleep(_POLL_S)


def _list_processes(root: Path) -> Iterator[int]:
    for folder in _list_deepest_first(root):
        with suppress(OSError):
            yield from map(int, (folder / "cgroup.procs").read_text().split())


def _list_deepest_first(root: Path) -> list[Path]:
    return [Path(folder) for folder, _, _ in os.walk(root, topdown=False)]
