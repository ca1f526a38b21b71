"""Free ports on loopback.

Another process may take a port between its choice and its use. Two rules keep that rare: ports are below the kernel's
range for outgoing connections, and ports recorded by other clusters stay reserved while those are stopped.
"""

from __future__ import annotations

import errno
import random
import socket
from typing import TYPE_CHECKING

from kgwe.errors import Permanent

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

LOOPBACK = "127.0.0.1"
# Linux uses 32768-60999 for outgoing connections by default.
_FIRST, _LAST = 20000, 32767
_TRIES = 2000


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Like the servers do: a port whose last connection is in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as exc:
            if exc.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise
    return True


def allocate(
    purposes: Sequence[str],
    *,
    preferred: Mapping[str, int] | None = None,
    avoid: Collection[int] = (),
    seed: int | None = None,
) -> dict[str, int]:
    """Return one free port per purpose: the preferred one if it is free, else any."""
    chosen: dict[str, int] = {}
    rng = random.Random(seed)  # noqa: S311 -- spreads load, keeps no secret
    for purpose in purposes:
        wanted = (preferred or {}).get(purpose)
        if wanted is not None and wanted not in chosen.values() and is_free(wanted):
            chosen[purpose] = wanted
            continue
        for _ in range(_TRIES):
            port = rng.randint(_FIRST, _LAST)
            if port not in avoid and port not in chosen.values() and is_free(port):
                chosen[purpose] = port
                break
        else:
            raise Permanent(f"no free port on {LOOPBACK} between {_FIRST} and {_LAST} for {purpose}")
    return chosen
