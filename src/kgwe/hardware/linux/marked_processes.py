"""Processes that outlive the agent, identified by a mark in their environment.

A recorded pid is not reliable after a restart: another process may have it. Processes that we start have a mark in
their environment, which their children inherit. Signals go through a descriptor that is opened before the mark is
read, so exactly the identified process gets them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PROC: Final = "/proc"
# Fields of /proc/PID/stat, after the closing bracket of the command.
_PARENT: Final = 1
_STARTED: Final = 19


@dataclass(frozen=True, slots=True)
class MarkedProcess:
    pid: int
    parent: int
    started: int
    """Ticks since boot: the same pid with another start is another process."""
    mark: str


def find_processes(name: str, prefix: str) -> list[MarkedProcess]:
    """Return all running processes whose environment has `name` with a value that begins with the prefix."""
    return [
        found
        for pid in _list_pids()
        if (found := read_process(pid, name)) is not None and found.mark.startswith(prefix)
    ]


def read_process(pid: int, name: str) -> MarkedProcess | None:
    """Return a process if it runs and has a mark."""
    mark = _read_environment(pid, name)
    # Most processes have no mark: one file of each is read.
    fields = _read_stat(pid) if mark is not None else None
    # A zombie has ended and waits to be reaped.
    if fields is None or mark is None or fields[0] in {"Z", "X"}:
        return None
    return MarkedProcess(pid, int(fields[_PARENT]), int(fields[_STARTED]), mark)


def is_alive(process: MarkedProcess, name: str) -> bool:
    """Return whether exactly this process runs; an orphan gets another parent, but is the same process."""
    now = read_process(process.pid, name)
    return now is not None and (now.started, now.mark) == (process.started, process.mark)


def terminate(processes: Sequence[MarkedProcess], name: str, *, grace_s: float) -> None:
    """Send SIGTERM, and SIGKILL to the rest after the grace period. Blocks until they have ended, or for twice the
    grace.
    """
    with _open_processes(processes, name) as descriptors:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for fd in descriptors:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, number)
            if _all_gone(descriptors, grace_s):
                return


@contextlib.contextmanager
def _open_processes(processes: Sequence[MarkedProcess], name: str) -> Iterator[list[int]]:
    descriptors: list[int] = []
    try:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(process.pid)
                if is_alive(process, name):
                    descriptors.append(fd)
                else:
                    os.close(fd)
        yield descriptors
    finally:
        for fd in descriptors:
            os.close(fd)


def _all_gone(descriptors: Sequence[int], grace_s: float) -> bool:
    deadline = time.monotonic() + grace_s
    for fd in descriptors:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if not poll.poll(max(deadline - time.monotonic(), 0.0) * 1000):
            return False
    return True


def _list_pids() -> Iterator[int]:
    for name in os.listdir(_PROC):  # noqa: PTH208 - a path for each process takes longer than to read it
        if name.isdigit():
            yield int(name)


def _read_stat(pid: int) -> list[str] | None:
    try:
        text = _read_file(pid, "stat").decode(errors="replace")
    except OSError:
        return None
    # The command may contain spaces and brackets; the fields after the last bracket do not.
    return text.rpartition(")")[2].split()


def _read_environment(pid: int, name: str) -> str | None:
    try:
        data = b"\0" + _read_file(pid, "environ")
    except OSError:
        return None  # exited, or of another user
    _, found, rest = data.partition(f"\0{name}=".encode())
    return rest.partition(b"\0")[0].decode(errors="surrogateescape") if found else None


def _read_file(pid: int, name: str) -> bytes:
    with open(f"{_PROC}/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - thousands of processes on a node
        return file.read()
