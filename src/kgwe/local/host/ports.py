"""Free ports on loopback.

Another process may take a port between its choice and its use. Three rules keep that rare:

- Ports are below the kernel's range for outgoing connections, and control planes have a range of their own.
- A chosen port stays bound, without listening, by the process that chose it. No other process chooses it then. A server
  can still listen on it, because servers set SO_REUSEADDR.
- Ports recorded by other clusters stay reserved while those are stopped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
from collections import deque
from typing import TYPE_CHECKING, Final

from kgwe.errors import Permanent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

LOOPBACK = "127.0.0.1"
# Linux uses 32768-60999 for outgoing connections by default.
CONTROL_PLANES: Final = range(20000, 32768)
PROCESSES: Final = range(10000, 20000)
_TRIES = 2000
# Enough for everything that starts at the same time; a port that was chosen longer ago is in use or was given up.
_HELD_MAX = 128
#: descriptors of the bound sockets, the oldest first
_held: deque[int] = deque()


def allocate(
    purposes: Sequence[str],
    *,
    preferred: Mapping[str, int] | None = None,
    avoid: Collection[int] = (),
    among: range = PROCESSES,
    seed: int | None = None,
) -> dict[str, int]:
    """Return one free port per purpose: the preferred one if it is free, else any."""
    chosen: dict[str, int] = {}
    rng = random.Random(seed)  # noqa: S311 -- spreads load, keeps no secret
    for purpose in purposes:
        wanted = (preferred or {}).get(purpose)
        if wanted is not None and wanted not in chosen.values() and _hold(wanted, reuse=True):
            chosen[purpose] = wanted
            continue
        for _ in range(_TRIES):
            port = rng.choice(among)
            if port not in avoid and port not in chosen.values() and _hold(port, reuse=False):
                chosen[purpose] = port
                break
        else:
            raise Permanent(f"no free port on {LOOPBACK} between {among[0]} and {among[-1]} for {purpose}")
    return chosen


@contextlib.contextmanager
def reserve(purpose: str, *, among: range = PROCESSES) -> Iterator[int]:
    """Keep a free port for servers that come and go; no other process chooses it until the end of the context."""
    (port,) = allocate((purpose,), among=among).values()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOOPBACK, port))
        yield port


def _hold(port: int, *, reuse: bool) -> bool:
    """Bind the port until this process ends or has chosen many others; return False if it is taken.

    With `reuse`, as servers do: a port whose last connection is in TIME_WAIT is free, and one that another process
    only holds is too.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        try:
            holder.bind((LOOPBACK, port))
        except OSError as exc:
            if exc.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server may listen on it
        _held.append(holder.detach())
    while len(_held) > _HELD_MAX:
        os.close(_held.popleft())
    return True
