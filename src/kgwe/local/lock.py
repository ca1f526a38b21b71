"""A lock between processes: a file that says who holds it.

flock, not the existence of a file: the kernel lets go when the holder dies, however it dies.
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
    def held(self, *, timeout_s: float, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
        """Hold the lock, waiting for whoever has it; `waiting` is told once that we wait, and for whom."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # The file stays when we are done: removing it would let a third process lock a file nobody else can see.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._acquire(descriptor, timeout_s, waiting)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {self._purpose}\n".encode(), 0)
            yield
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def _acquire(self, descriptor: int, timeout_s: float, waiting: Callable[[str], None] | None) -> None:
        deadline = time.monotonic() + timeout_s
        told = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = self._holder(descriptor)
                if time.monotonic() >= deadline:
                    raise Transient(
                        f"{self._purpose}: gave up after {timeout_s:.0f} s waiting for {holder} (lock {self._path})"
                    ) from None
                if waiting is not None and not told:
                    waiting(f"waiting for {holder}")
                    told = True
                time.sleep(_POLL_S)
            else:
                return

    @staticmethod
    def _holder(descriptor: int) -> str:
        pid, _, purpose = os.pread(descriptor, 200, 0).decode(errors="replace").strip().partition(" ")
        return f"process {pid}, {purpose}" if pid else "another process"
