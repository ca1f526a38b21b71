"""Processes that outlive this command, and safe identification of them.

A component runs in its own session (Ctrl-C at our terminal must not reach it), with its output in a log file, and with
its cluster in an environment variable. A process is identified by:

    its pid, its start time since boot and the boot itself    a reused pid has a later start time, a reboot another
    boot id
    the mark in its environment                               found again even if the PID was not recorded

Signals go through a pidfd that is opened before the check, so exactly the checked process gets the signal. Linux only,
like the control plane itself.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kgwe.errors import InvariantBroken

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MARK = "KGWE_LOCAL_COMPONENT"
_PROC = Path("/proc")
_START_TIME_FIELD = 19  # of /proc/PID/stat after the command's closing bracket; starttime(22) in proc(5)
_RSS_FIELD = 21
_CPU_FIELDS = (11, 12)
_SPAWN_TIMEOUT_S = 10.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessRecord(msgspec.Struct, frozen=True):
    """A recorded process: enough to identify it, or to start it again."""

    name: str
    pid: int
    start_ticks: int
    boot: str
    argv: tuple[str, ...]
    log: str
    mark: str
    env: dict[str, str] = {}


class Usage(msgspec.Struct, frozen=True):
    rss_mib: float
    cpu_s: float
    age_s: float


def spawn(
    name: str, argv: Sequence[str], *, log: Path, owner: Path, env: Mapping[str, str] | None = None
) -> ProcessRecord:
    """Start a process that belongs to the cluster in the directory `owner`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    mark = mark_of(owner, name)
    environment = {**os.environ, **(env or {}), MARK: mark}
    # posix_spawn instead of subprocess: we do not wait for the child, but a Popen object requires it.
    pid = os.posix_spawn(
        argv[0],
        list(argv),
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
    )
    _await_mark(pid, mark)
    # The unreaped child keeps its pid even if it has exited, so its start time can be read.
    return ProcessRecord(
        name=name,
        pid=pid,
        start_ticks=_start_ticks(pid) or 0,
        boot=boot_id(),
        argv=tuple(argv),
        log=str(log),
        mark=mark,
        env=dict(env or {}),
    )


def _await_mark(pid: int, mark: str) -> None:
    """Wait until the environment of the new program is visible, which is a moment after posix_spawn returns."""
    deadline = time.monotonic() + _SPAWN_TIMEOUT_S
    while _read_mark(pid) != mark.encode(errors="surrogateescape") and _is_running(pid):
        if time.monotonic() > deadline:
            raise InvariantBroken(f"process {pid} does not have its mark in the environment")
        time.sleep(0.001)


def mark_of(owner: Path, name: str) -> str:
    return f"{owner}#{name}"


def is_alive(record: ProcessRecord) -> bool:
    """Return whether exactly this process runs (not another one with its pid, not a zombie)."""
    _reap(record)
    return _is_same_process(record)


def find_marked(owner: Path) -> list[ProcessRecord]:
    """Return the processes of a cluster by the mark in their environment, even if they were not recorded."""
    found = []
    prefix = f"{owner}#".encode()
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        mark = _read_mark(int(entry.name))
        if mark is None or not mark.startswith(prefix):
            continue
        pid = int(entry.name)
        ticks = _start_ticks(pid)
        if ticks is None or not _is_running(pid):
            continue
        text = mark.decode(errors="surrogateescape")
        name = text.rpartition("#")[2]
        found.append(ProcessRecord(name, pid, ticks, boot_id(), _read_argv(pid), "", text))
    return found


def terminate(records: Sequence[ProcessRecord], *, grace_s: float) -> list[ProcessRecord]:
    """Send SIGTERM to all, wait, then kill the rest; return those that had to be killed."""
    killed = []
    with _open_pidfds(records) as handles:
        for _, fd in handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGTERM)
        _await_exit([fd for _, fd in handles], grace_s)
        for record, fd in handles:
            if not _has_exited(fd):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                killed.append(record)
        _await_exit([fd for _, fd in handles], grace_s)
    for record in records:
        _reap(record)
    return killed


def kill(record: ProcessRecord, *, timeout_s: float = 10.0) -> bool:
    """Send SIGKILL and wait until the process has ended; return False if it was not running."""
    with _open_pidfds([record]) as handles:
        for _, fd in handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            _await_exit([fd], timeout_s)
    _reap(record)
    return bool(handles)


def await_any_exit(records: Sequence[ProcessRecord], timeout_s: float) -> None:
    """Return when one of the processes has ended, or after the timeout."""
    with _open_pidfds(records) as handles:
        if len(handles) < len(records):
            return
        poll = select.poll()
        for _, fd in handles:
            poll.register(fd, select.POLLIN)
        poll.poll(timeout_s * 1000)


def read_usage(record: ProcessRecord) -> Usage | None:
    """Return the current resource usage of the process; None if it does not exist."""
    if not is_alive(record):
        return None
    fields = _read_stat(record.pid)
    if fields is None:
        return None
    uptime_s = float((_PROC / "uptime").read_text().split()[0])
    return Usage(
        rss_mib=int(fields[_RSS_FIELD]) * _PAGE_BYTES / 2**20,
        cpu_s=sum(int(fields[i]) for i in _CPU_FIELDS) / _TICKS_PER_S,
        age_s=max(0.0, uptime_s - record.start_ticks / _TICKS_PER_S),
    )


def boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


@contextmanager
def _open_pidfds(records: Sequence[ProcessRecord]) -> Iterator[list[tuple[ProcessRecord, int]]]:
    handles: list[tuple[ProcessRecord, int]] = []
    try:
        for record in records:
            try:
                fd = os.pidfd_open(record.pid)
            except ProcessLookupError:
                continue
            # The check follows the opening, so the descriptor refers to the checked process.
            if _is_same_process(record):
                handles.append((record, fd))
            else:
                os.close(fd)
        yield handles
    finally:
        for _, fd in handles:
            os.close(fd)


def _is_same_process(record: ProcessRecord) -> bool:
    return (
        record.boot == boot_id()
        and _start_ticks(record.pid) == record.start_ticks
        and _is_running(record.pid)
        and _read_mark(record.pid) == record.mark.encode(errors="surrogateescape")
    )


def _await_exit(fds: Sequence[int], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    for fd in fds:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(max(0.0, deadline - time.monotonic()) * 1000)


def _has_exited(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _reap(record: ProcessRecord) -> None:
    # Only our own children leave zombies to reap; for others we get ECHILD. The start time is checked because another
    # child may have the pid by now, and its exit status is not ours.
    if record.boot == boot_id() and _start_ticks(record.pid) == record.start_ticks:
        with suppress(ChildProcessError):
            os.waitpid(record.pid, os.WNOHANG)


def _read_stat(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command may contain spaces and brackets; the fields after the last bracket do not.
    return text.rpartition(")")[2].split()


def _start_ticks(pid: int) -> int | None:
    fields = _read_stat(pid)
    return None if fields is None else int(fields[_START_TIME_FIELD])


def _is_running(pid: int) -> bool:
    fields = _read_stat(pid)
    return fields is not None and fields[0] not in {"Z", "X"}


def _read_mark(pid: int) -> bytes | None:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None  # exited, or of another user
    prefix = f"{MARK}=".encode()
    return next((line[len(prefix) :] for line in environment.split(b"\0") if line.startswith(prefix)), None)


def _read_argv(pid: int) -> tuple[str, ...]:
    try:
        data = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode(errors="surrogateescape") for part in data.rstrip(b"\0").split(b"\0"))
