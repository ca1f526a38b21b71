"""A lock between processes: a file that names its holder.

It uses flock, not the existence of a file: the kernel releases the lock when the holder dies.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kgwe.errors import Transient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_POLL_S = 0.1


class Lock:
    def __init__(self, path: Path, *, purpose: str) -> None:
        self._path = path
        self._purpose = purpose

    @contextmanager
    def hold(self, *, timeout_s: float, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
        """Hold the lock, waiting if necessary; `waiting` is called once with the holder."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = self._acquire(time.monotonic() + timeout_s, waiting)
        try:
            os.pwrite(descriptor, f"{os.getpid()} {self._purpose}\n".encode(), 0)
            yield
        finally:
            os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def remove(self) -> None:
        """Remove the file while holding the lock: waiting processes notice and use a new one."""
        self._path.unlink(missing_ok=True)

    def _acquire(self, deadline: float, waiting: Callable[[str], None] | None) -> int:
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _describe_holder(descriptor)
                os.close(descriptor)
                if time.monotonic() >= deadline:
                    raise Transient(f"{self._purpose}: timed out waiting for {holder} (lock {self._path})") from None
                if waiting is not None:
                    waiting(f"waiting for {holder}")
                    waiting = None
                time.sleep(_POLL_S)
                continue
            if self._is_current(descriptor):
                return descriptor
            os.close(descriptor)

    def _is_current(self, descriptor: int) -> bool:
        """Return whether other processes will open the same file that we locked."""
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            return False


def _describe_holder(descriptor: int) -> str:
    pid, _, purpose = os.pread(descriptor, 200, 0).decode(errors="replace").strip().partition(" ")
    return f"process {pid}, {purpose}" if pid else "another process"
