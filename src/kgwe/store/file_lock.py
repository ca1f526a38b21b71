"""The lock that makes a process the only writer of a SQLite file."""

from __future__ import annotations

import fcntl
import os
import socket
from typing import TYPE_CHECKING

from kgwe import errors

if TYPE_CHECKING:
    from pathlib import Path

_MAX_NAME = 200


class FileLock:
    """An exclusive lock on `<path>.lock`. The kernel releases it when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        """Take the lock; Transient with the name of the process that holds it."""
        self._path = path.with_name(f"{path.name}.lock")
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            raise errors.Permanent(
                f"cannot create the lock {self._path} ({exc.strerror}): check that the directory exists and is writable"
            ) from exc
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            holder = os.pread(descriptor, _MAX_NAME, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            raise errors.Transient(
                f"another process writes the store {path} ({holder or 'its name is unknown'}):"
                f" a store has one writer, so stop that process or use another file"
            ) from exc
        self._descriptor: int | None = descriptor
        _write_name(descriptor)

    def release(self) -> None:
        """Release the lock. The file stays: removing it could remove the lock of the next writer."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _write_name(descriptor: int) -> None:
    name = f"process {os.getpid()} on {socket.gethostname()}"
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, name.encode()[:_MAX_NAME], 0)
    except OSError:
        # A full disk: the lock holds without the name.
        return
