"""Free ports on loopback.

Another process may take a port between its choice and its use. Two things keep that rare: ports come from below the
range that the kernel uses for outgoing connections, and ports that other clusters recorded are left to them even while
they are stopped.
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
# Linux hands out 32768-60999 for outgoing connections unless told otherwise.
_FIRST, _LAST = 20000, 32767
_TRIES = 2000


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: a port whose last connection is still in TIME_WAIT counts as free.
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
    """One free port per purpose: the preferred one while it is free, else any."""
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
