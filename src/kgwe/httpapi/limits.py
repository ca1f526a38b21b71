"""How often a client may call: a bucket of tokens for each user, and for each address of clients that are not known.

And how many requests of a user are answered at the same time.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final

from kgwe.httpapi import problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: a request with a larger body is refused; no route reads one
MOST_BODY_BYTES: Final = 64 << 10
_MOST_CLIENTS: Final = 10_000


class RateLimiter:
    """Token buckets by name."""

    def __init__(self, per_s: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, name: str) -> float:
        """Return the tokens that are left, and take none; raise a Problem with 429 if there is none."""
        now = self._clock()
        tokens, filled = self._buckets.get(name, (float(self._burst), now))
        tokens = min(tokens + (now - filled) * self._per_s, float(self._burst))
        if tokens < 1:
            raise problems.too_many(int((1 - tokens) / self._per_s) + 1)
        return tokens

    def take(self, name: str) -> None:
        """Take a token; raise a Problem with 429 if there is none."""
        self._buckets[name] = self.check(name) - 1, self._clock()
        self._buckets.move_to_end(name)
        while len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)


class ConcurrencyLimiter:
    """Requests of each user that are answered at the same time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: Counter[str] = Counter()

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Count a request while the context is open; raise a Problem with 429 if there are too many."""
        if self._running[name] >= self._most:
            raise problems.too_many(1)
        self._running[name] += 1
        try:
            yield
        finally:
            self._running[name] -= 1
            if not self._running[name]:
                del self._running[name]
