"""Signals to the processes of one pod.

A signal goes only to processes that handle it: by default SIGUSR1 ends a process. Children inherit handlers, such as
the data loaders of a training process, so of processes that handle the signal only the topmost get it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.hardware.linux.cgroups import PROC, read_cgroup

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAX_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class PodProcess:
    """A process of a pod."""

    pid: int
    parent: int
    caught: int
    """Mask of the signals that it handles; bit 0 is signal 1."""

    def handles(self, number: int) -> bool:
        return bool(self.caught >> (number - 1) & 1)


class PodProcesses:
    """The processes of pods, by the cgroups in /proc."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc

    def list_of(self, pod_uid: str) -> list[PodProcess]:
        """Return the processes of the pod that run now. Reads all of /proc: call it in a thread."""
        return [process for pid in self._list_pids() if (process := self._read(pid, pod_uid)) is not None]

    def send(self, pod_uid: str, name: str) -> list[int]:
        """Send a signal to the topmost processes of the pod that handle it; return their pids."""
        number = int(signal.Signals[name])
        found = {process.pid: process for process in self.list_of(pod_uid) if process.handles(number)}
        topmost = [process.pid for process in found.values() if process.parent not in found]
        return [pid for pid in topmost if self._send_to(pid, pod_uid, number)]

    def _send_to(self, pid: int, pod_uid: str, number: int) -> bool:
        """Signal exactly the process that was found: the pid may be another process by now."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            fd = os.pidfd_open(pid)
            try:
                if self._read(pid, pod_uid) is None:
                    return False
                signal.pidfd_send_signal(fd, number)
                return True
            finally:
                os.close(fd)
        return False

    def find_mtime(self, pid: int, file: str) -> float | None:
        """Return when a file in the root of a process was written; None if it is absent.

        The pod's user controls that tree, so no symbolic link is followed: it could lead out of it.
        """
        directory = -1
        try:
            directory = os.open(self._proc / str(pid) / "root", os.O_PATH | os.O_DIRECTORY)
            *parents, name = file.strip("/").split("/")
            for part in parents:
                below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
                os.close(directory)
                directory = below
            return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime
        except OSError:
            return None
        finally:
            if directory >= 0:
                os.close(directory)

    def _list_pids(self) -> Iterator[int]:
        for entry in self._proc.iterdir():
            if entry.name.isdecimal():
                yield int(entry.name)

    def _read(self, pid: int, pod_uid: str) -> PodProcess | None:
        place = read_cgroup(pid, self._proc)
        if place is None or place.pod_uid != pod_uid:
            return None
        try:
            with (self._proc / str(pid) / "status").open("rb") as file:
                text = file.read(_MAX_BYTES).decode(errors="replace")
        except OSError:
            return None
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        if fields.get("State", "").strip()[:1] in {"Z", "X"}:
            return None
        return PodProcess(pid, int(fields.get("PPid", "0")), int(fields.get("SigCgt", "0").strip(), 16))
