"""The embedded source: KGWE scrapes the exporters itself, so that no Prometheus is needed.

    targets → scrapes (concurrent, each with a deadline) → buffer of raw samples → windows
                                                                    ↳ one window per finished minute → sink

A failed scrape is a gap. No exporter delays another: rounds do not wait for scrapes that take long, exporters that
failed have slots of their own, and large bodies are read in threads of their own. Times are those of the wall clock:
after a jump forward there is a gap, after a jump backward the samples that are now in the future are forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import structlog

from kgwe import errors
from kgwe.metrics.buffer import SampleBuffer
from kgwe.metrics.exposition import Scrape
from kgwe.metrics.fields import Field
from kgwe.metrics.grid import plan_steps
from kgwe.metrics.holdings import attach_holders, index_holdings
from kgwe.metrics.scraper import TargetScraper

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    import httpx2

    from kgwe.metrics.holdings import Holders, Holding
    from kgwe.metrics.targets import TargetSource
    from kgwe.model.usage.window import DeviceKey, UsageWindow

log = structlog.get_logger(__name__)

MINUTE_S: Final = 60.0
# The wall clock is adjusted by small steps all the time.
_BACKWARD_S: Final = 1.0
# Devices that clients may push samples of: more than the largest cluster has outside of its exporters.
_MAX_PUSHED: Final = 20_000
# Threads that read large bodies. Others would share the interpreter with them, and windows are made in threads too.
_READERS: Final = 2


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """How exporters are scraped."""

    interval_s: float = 15.0
    timeout_s: float = 5.0
    """Per target."""
    concurrency: int = 64
    max_body_bytes: int = 8 * 1024 * 1024
    """Per target, after decompression. The exporter of a node with eight GPUs sends a third of a megabyte."""
    refresh_s: float = 60.0
    """Time between two reads of the list of targets."""
    keep_s: float = 1800.0
    """Time for which raw samples are kept: the longest window."""
    stale_after_s: float = 90.0


class EmbeddedSource:
    """Scrapes exporters. `now` is the wall clock; `on_minute` gets a window of one step for each finished minute."""

    def __init__(
        self,
        targets: TargetSource,
        client: httpx2.AsyncClient,
        settings: ScrapeSettings | None = None,
        *,
        now: Callable[[], float] = time.time,
        on_minute: Callable[[UsageWindow], Awaitable[None]] | None = None,
        holders: Callable[[], Iterable[Holding]] | None = None,
    ) -> None:
        self._targets = targets
        self._client = client
        self._settings = settings or ScrapeSettings()
        self._now = now
        self._on_minute = on_minute
        self._holders = holders
        self._buffer = SampleBuffer(self._settings.keep_s)
        self._scrapers: dict[str, TargetScraper] = {}
        self._slots = asyncio.Semaphore(self._settings.concurrency)
        self._slots_of_failing = asyncio.Semaphore(max(self._settings.concurrency // 8, 1))
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="exposition")
        self._scraping: set[asyncio.Task[None]] = set()
        self._discovery_problem: str | None = "exporters have not been listed yet"
        self._sink_problem: str | None = None
        self._refreshed_s: float | None = None
        self._last_s: float | None = None
        self._scraped: dict[str, float] = {}
        """Node -> when an exporter last reported it."""
        self._pushed: dict[DeviceKey, float] = {}
        """Devices of pushed samples -> when they were last seen."""
        self._pushed_checked_s = 0.0
        self._minute_s = 0.0
        """End of the next minute for the sink."""

    # --- reading ----------------------------------------------------------------------------------------

    async def read_window(self, end_s: float, length_s: float, step_s: float) -> UsageWindow:
        """Return usage in a window; see `MetricSource`. It is made in a thread."""
        return await asyncio.to_thread(self._buffer.prepare_window(plan_steps(end_s, length_s, step_s)))

    def problem(self) -> str | None:
        """Return why data is missing or stale: no targets, most targets fail, or no new samples."""
        scrapers = list(self._scrapers.values())
        if not scrapers:
            return self._discovery_problem or "there is no exporter to scrape"
        failing = [each for each in scrapers if each.error is not None]
        if len(failing) * 2 > len(scrapers):
            first = failing[0]
            return f"{len(failing)} of {len(scrapers)} exporters fail; {first.target.url} {first.error}"
        newest_s = self._buffer.newest_s
        if newest_s is None:
            return "no exporter has sent a sample yet"
        age_s = self._now() - newest_s
        if age_s > self._settings.stale_after_s:
            return f"the newest sample is {age_s:.0f} s old"
        return self._sink_problem

    def list_failures(self) -> dict[str, str]:
        """Return URL -> why its last scrape failed."""
        return {each.target.url: each.error for each in self._scrapers.values() if each.error is not None}

    def count_targets(self) -> int:
        """Return how many exporters are known."""
        return len(self._scrapers)

    # --- scraping ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Scrape until cancelled. Rounds begin at a fixed interval, and do not wait for scrapes that take longer."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            while True:
                await self._start_round()
                due = max(due + self._settings.interval_s, loop.time())
                # Most scrapes have ended by then.
                await asyncio.sleep((due - loop.time()) / 2)
                await self._end_round()
                await asyncio.sleep(due - loop.time())
        finally:
            for task in self._scraping:
                task.cancel()

    async def scrape_round(self) -> None:
        """Scrape every target that is due, once, and pass finished minutes to the sink."""
        await self._start_round()
        await asyncio.gather(*self._scraping, return_exceptions=True)
        await self._end_round()

    async def _start_round(self) -> None:
        self._watch_clock(self._now())
        await self._refresh_targets()
        held = index_holdings(self._holders()) if self._holders is not None else {}
        for each in self._scrapers.values():
            if each.is_due():
                each.is_busy = True
                task = asyncio.create_task(self._scrape(each, held))
                self._scraping.add(task)
                task.add_done_callback(self._end_scrape)

    def _end_scrape(self, task: asyncio.Task[None]) -> None:
        self._scraping.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.error("scrape_crashed", exc_info=exc)

    async def _end_round(self) -> None:
        self._buffer.forget_before(self._now())
        await self._emit_minutes(self._now())

    def seed(self, window: UsageWindow) -> None:
        """Start from stored minutes after a restart. Each step becomes a sample in its middle."""
        for step, end_s in enumerate(window.ends_s.tolist()):
            values = np.full((len(window.devices), len(Field)), np.nan, dtype=np.float32)
            values[:, Field.ENGINE] = window.activity[:, step]
            values[:, Field.TENSOR] = window.tensor[:, step]
            values[:, Field.DRAM] = window.dram[:, step]
            values[:, Field.USED] = window.memory_used_mib[:, step]
            values[:, Field.TOTAL] = window.memory_total_mib[:, step]
            values[:, Field.POWER] = window.power_w[:, step]
            known = np.flatnonzero(~np.isnan(values).all(axis=1))
            devices = tuple(window.devices[row] for row in known.tolist())
            self._buffer.add(Scrape(devices, values[known]), end_s - window.step_s / 2)

    def push(self, scrape: Scrape, at_s: float) -> None:
        """Take in samples that a client sent, for nodes that are not scraped. Others are counted and skipped.

        What an exporter says wins: a client must not make a busy device look idle. The caller checks that pods are on
        the nodes of their samples.
        """
        oldest_s = self._now() - self._settings.keep_s
        if at_s < oldest_s:
            self._buffer.count_rejected(scrape.select([], "out_of_order").rejected, self._now())
            return
        self._scraped = {node: seen_s for node, seen_s in self._scraped.items() if seen_s >= oldest_s}
        self._forget_pushed(oldest_s)
        rows = []
        for row, device in enumerate(scrape.devices):
            is_known = device.key in self._pushed or len(self._pushed) < _MAX_PUSHED
            if device.key.node not in self._scraped and is_known:
                self._pushed[device.key] = self._now()
                rows.append(row)
        self._buffer.add(scrape.select(rows, "refused"), at_s)

    def _forget_pushed(self, oldest_s: float) -> None:
        """Forget devices of pushed samples. Once per minute: there are many, and a message has few of them."""
        if self._now() - self._pushed_checked_s >= MINUTE_S or self._now() < self._pushed_checked_s:
            self._pushed = {key: seen_s for key, seen_s in self._pushed.items() if seen_s >= oldest_s}
            self._pushed_checked_s = self._now()

    async def close(self) -> None:
        """Close connections."""
        await self._client.aclose()
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _watch_clock(self, now_s: float) -> None:
        """Forget samples from the future if the clock was set back."""
        if self._last_s is not None and now_s < self._last_s - _BACKWARD_S:
            removed = self._buffer.forget_after(now_s)
            self._buffer.count_rejected({"out_of_order": removed} if removed else {}, now_s)
            for each in self._scrapers.values():
                each.forget_time()
            self._refreshed_s = None
            self._minute_s = 0.0
            log.warning("clock_set_back", by_s=round(self._last_s - now_s, 1), samples_forgotten=removed)
        self._last_s = now_s
        if not self._minute_s:
            self._minute_s = math.floor(now_s / MINUTE_S) * MINUTE_S + MINUTE_S

    async def _refresh_targets(self) -> None:
        now_s = self._now()
        if self._refreshed_s is not None and now_s - self._refreshed_s < self._settings.refresh_s:
            return
        try:
            targets = await self._targets.list_targets()
        except errors.KgweError as exc:
            self._discovery_problem = str(exc)
            log.warning("exporters_not_listed", error=str(exc))
            return  # the known ones are still scraped
        self._discovery_problem = None
        self._refreshed_s = now_s
        known = self._scrapers
        self._scrapers = {}
        for target in targets:
            old = known.get(target.url)
            keep = old is not None and old.target.labels == target.labels
            self._scrapers[target.url] = old if keep and old is not None else TargetScraper(target)

    async def _scrape(self, scraper: TargetScraper, held: Holders) -> None:
        try:
            async with self._slots if scraper.error is None else self._slots_of_failing:
                scrape = await scraper.scrape(
                    self._client,
                    self._readers,
                    timeout_s=self._settings.timeout_s,
                    max_bytes=self._settings.max_body_bytes,
                )
        finally:
            scraper.is_busy = False
        if scrape is None:
            return
        now_s = self._now()
        at_s, rejected = scraper.accept_time(scrape, now_s)
        if rejected:
            self._buffer.count_rejected(rejected, at_s)
            return
        self._buffer.add(attach_holders(scrape, held) if held else scrape, at_s)
        for node in {device.key.node for device in scrape.devices}:
            self._scraped[node] = now_s

    # --- finished minutes -------------------------------------------------------------------------------

    async def _emit_minutes(self, now_s: float) -> None:
        """Pass each finished minute to the sink. A minute that the sink refuses is offered again."""
        if self._on_minute is None:
            return
        grace_s = self._settings.timeout_s
        self._minute_s = max(self._minute_s, math.floor((now_s - self._settings.keep_s) / MINUTE_S) * MINUTE_S)
        while self._minute_s + grace_s <= now_s:
            window = await self.read_window(self._minute_s, MINUTE_S, MINUTE_S)
            try:
                if window.devices:
                    await self._on_minute(window)
            except errors.KgweError as exc:
                self._sink_problem = f"minutes of usage are not stored: {exc}"
                log.warning("minute_not_stored", error=str(exc))
                return
            self._sink_problem = None
            self._minute_s += MINUTE_S


@contextlib.asynccontextmanager
async def scraping(source: EmbeddedSource) -> AsyncIterator[EmbeddedSource]:
    """Scrape in the background while the context is open."""
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await source.close()
