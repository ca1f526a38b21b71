"""Scrapes one exporter: a deadline, a limit on the body, and a pause that doubles after each failure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import httpx2

from kgwe import errors
from kgwe.metrics.exposition import ExpositionReader, Scrape

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from kgwe.metrics.fields import Rejected
    from kgwe.metrics.targets import Target

_MAX_SKIPPED: Final = 7
_MAX_AHEAD_S: Final = 60.0
# Larger bodies are read in a thread: they would block the event loop.
_LARGE_BODY: Final = 128 * 1024
_ACCEPT: Final = {"accept": "text/plain;version=0.0.4"}


class TargetScraper:
    """The state of one target between scrapes."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.error: str | None = None
        """Why the last scrape failed; None if it did not."""
        self.is_tried = False
        self.is_busy = False
        """Whether a scrape has not ended yet."""
        self._reader = ExpositionReader(labels=target.labels)
        self._failures = 0
        self._skips_left = 0
        self._last_s: float | None = None

    def is_due(self) -> bool:
        """Whether to scrape in this round. A target that failed n times is skipped for up to 7 rounds."""
        if self.is_busy:
            return False
        if self._skips_left > 0:
            self._skips_left -= 1
            return False
        return True

    async def scrape(
        self, client: httpx2.AsyncClient, readers: Executor, *, timeout_s: float, max_bytes: int
    ) -> Scrape | None:
        """Return the samples; None after a failure, which is a gap. Large bodies are read by `readers`."""
        self.is_tried = True
        try:
            async with asyncio.timeout(timeout_s):
                body = await self._get(client, max_bytes)
                scrape = await self._read(body, readers) if len(body) > _LARGE_BODY else self._reader.read(body)
        except TimeoutError:
            self._fail(f"took longer than {timeout_s:g} s")
        except errors.Transient as exc:
            self._fail(str(exc))
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as exc:
            self._fail(f"does not respond: {str(exc) or type(exc).__name__}")
        else:
            self.error, self._failures = None, 0
            return scrape
        return None

    async def _read(self, body: bytes, readers: Executor) -> Scrape:
        """Read a large body in a thread, which gives up when this is cancelled."""
        is_wanted = True
        try:
            return await asyncio.get_running_loop().run_in_executor(readers, self._reader.read, body, lambda: is_wanted)
        finally:
            is_wanted = False

    def accept_time(self, scrape: Scrape, now_s: float) -> tuple[float, Rejected]:
        """Return the time of the samples, and what must be skipped because its time is not new."""
        written_s = now_s if scrape.at_s is None else scrape.at_s
        at_s = min(written_s, now_s)
        reason = None
        if written_s > now_s + _MAX_AHEAD_S:
            reason = "out_of_order"  # the clock of the exporter is wrong
        elif self._last_s is not None and at_s <= self._last_s:
            reason = "duplicate" if at_s == self._last_s else "out_of_order"
        if reason is not None:
            return now_s, {reason: len(scrape.devices)}
        self._last_s = at_s
        return at_s, {}

    def forget_time(self) -> None:
        """Accept earlier times again, because the clock was set back."""
        self._last_s = None

    async def _get(self, client: httpx2.AsyncClient, max_bytes: int) -> bytes:
        async with client.stream("GET", self.target.url, headers=_ACCEPT) as response:
            if response.status_code != httpx2.codes.OK:
                raise errors.Transient(f"returned status {response.status_code}")
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > max_bytes:
                    raise errors.Transient(f"sent more than {max_bytes} bytes")
        return bytes(body)

    def _fail(self, reason: str) -> None:
        self.error = reason
        self._skips_left = min(2**self._failures - 1, _MAX_SKIPPED)
        self._failures = min(self._failures + 1, _MAX_SKIPPED)
