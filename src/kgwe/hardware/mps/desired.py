"""The desired MPS daemons, in a file that one process at a time may change."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.sharing.mps import MAX_CLIENTS, THREAD_PERCENTAGE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_WANTED_FILE: Final = "wanted.json"
_LOCK_FILE: Final = "lock"


class DesiredDaemon(msgspec.Struct, frozen=True):
    """A desired daemon."""

    uuid: str
    """UUID of the GPU or MIG instance."""
    thread_percentage: int = THREAD_PERCENTAGE
    memory_mib: int | None = None
    """Limit of each client; None for no limit."""
    max_clients: int = MAX_CLIENTS
    is_exclusive: bool = False
    """Compute mode exclusive-process while the daemon is desired; whole GPUs only."""


class DesiredFile:
    """The file of desired daemons. A process killed with it open leaves it complete and unlocked."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._fd: int | None = None

    @property
    def is_open(self) -> bool:
        return self._fd is not None

    def open(self) -> dict[str, DesiredDaemon]:
        """Open the file and return the desired daemons by UUID; raise Conflict if another process has it open."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o755)
        # Closed in all child processes: a daemon that outlives us must not keep the lock.
        fd = os.open(self._root / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            wanted = self._read()
        except BlockingIOError as exc:
            os.close(fd)
            raise errors.Conflict(f"another agent manages the MPS daemons in {self._root}") from exc
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return wanted

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _read(self) -> dict[str, DesiredDaemon]:
        try:
            wishes = msgspec.json.decode((self._root / _WANTED_FILE).read_bytes(), type=list[DesiredDaemon])
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as exc:
            # Assuming an empty list would stop daemons in use.
            raise errors.Permanent(f"cannot read {self._root / _WANTED_FILE}: {exc}") from exc
        return {wish.uuid: wish for wish in wishes}

    def write(self, wanted: Mapping[str, DesiredDaemon]) -> None:
        """Replace the file atomically, also in case of a power failure."""
        path = self._root / _WANTED_FILE
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(list(wanted.values())))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
