"""Counting on the leader: every minute the meters are read, and what is new is stored in one transaction.

The ledger stores with each count up to when it counted. A process that starts continues there: what happened in between
is counted from what the API still shows. A start or an end that is reported only after a restart corrects what the
earlier process wrote, as far back as the grace. Pods that were deleted in between are not charged for that time; such
gaps are kept with the ledger, and reports name them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, Self

import httpx2
import msgspec
import structlog

from kgwe import errors
from kgwe.apps import background
from kgwe.apps.cost.quotas import sum_unused
from kgwe.apps.cost.usage import UsageFeed, open_usage
from kgwe.costing.books import Dimension
from kgwe.costing.metering import late_starts
from kgwe.costing.metering.late_ends import SPARE, end_holders
from kgwe.costing.metering.late_starts import start_holders
from kgwe.costing.metering.quota import QuotaMeter, sum_spare
from kgwe.costing.segments import HELD, Bucket
from kgwe.costing.split import parse_method
from kgwe.priceapi.live import LivePrices, open_lists
from kgwe.store.ledger import bill_files
from kgwe.store.ledger.ledger import Ledger
from kgwe.store.ledger.price_files import load_book
from kgwe.store.ledger.reader import LedgerReader
from kgwe.store.ledger.recent import load_recent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator
    from pathlib import Path
    from types import TracebackType

    from kgwe.apps.cost.cluster_meter import ClusterMeter
    from kgwe.apps.cost.cluster_view import ClusterView
    from kgwe.apps.cost.metrics import Metrics
    from kgwe.apps.cost.settings import Settings
    from kgwe.costing.segments import Segment
    from kgwe.store.ledger.ledger import NodeFacts

log = structlog.get_logger(__name__)

COUNTED: Final = "counted_until_s"
METHOD: Final = "split_method"
CURRENCY: Final = "currency"
GAPS: Final = "gaps"
_MOST_GAPS: Final = 20
_RETENTION_S: Final = 3600.0
_PRICES_S: Final = 60.0


class CostEngine:
    """One term of leadership. Use it as a context manager."""

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterView,
        metrics: Metrics,
        *,
        usage: UsageFeed | None = None,
        live: LivePrices | None = None,
        clock: Callable[[], float] = time.time,
        on_counted: Callable[[LedgerReader, int, str], Awaitable[None]] | None = None,
    ) -> None:
        """`on_counted`: awaited after each count, with a reader, the time up to which was counted, and the currency."""
        self._on_counted = on_counted
        self._settings = settings
        self._cluster = cluster
        self._metrics = metrics
        self._clock = clock
        self._usage = usage or UsageFeed(open_usage(settings, cluster, clock))
        self._live = live
        self._exit = contextlib.AsyncExitStack()
        self._method = parse_method(settings.split_method)
        self._book = load_book(settings.price_paths, with_defaults=settings.builtin_prices)
        self._ledger: Ledger | None = None
        self._meter: ClusterMeter | None = None
        self._quotas: QuotaMeter | None = None
        self._facts: dict[str, NodeFacts] = {}
        self._pending: list[Segment] = []
        self._state: dict[str, str] = {}
        self._resumed_s: int | None = None
        """Up to when an earlier process counted; None once its last segments are final."""
        self._charged: set[str] = set()
        """Pods that an earlier process charged for its last minutes."""
        self._problem: str | None = "has not counted yet"
        self._started_s = 0
        self._counting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._ledger = await asyncio.to_thread(Ledger.open, self._settings.store)
        stored = await asyncio.to_thread(self._ledger.load_state)
        now_s = int(self._clock())
        # Also when it lies ahead, because the clock went back: that time is counted already.
        since_s = int(stored.get(COUNTED, now_s))
        if since_s > now_s + self._settings.grace_seconds:
            log.warning("counted_ahead_of_the_clock", until=since_s, now=now_s)
        self._state = {METHOD: self._method, CURRENCY: self._book.currency}
        if now_s - since_s > self._settings.tracking_seconds + self._settings.grace_seconds:
            gaps = msgspec.json.decode(stored.get(GAPS, "[]"))
            self._state[GAPS] = msgspec.json.encode([*gaps, [since_s, now_s]][-_MOST_GAPS:]).decode()
            log.warning("cost_engine_was_down", since=since_s, until=now_s)
        self._meter = self._cluster.start_meter(since_s, self._settings.rules, self._clock, self._book)
        self._quotas = QuotaMeter(since_s)
        self._resumed_s = since_s if COUNTED in stored else None
        self._started_s = now_s
        await self._exit.enter_async_context(self._usage.running())
        await self._exit.enter_async_context(background.run_in_background(self._list_tasks()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.stop_meter()
        await self._exit.__aexit__(kind, error, trace)
        if self._ledger is not None:
            await asyncio.to_thread(self._ledger.close)

    def problem(self) -> str | None:
        """Return why costs are not counted; None if they are."""
        return self._problem

    async def count(self) -> None:
        """Count up to now, and store what is new. After an error the next count stores it."""
        async with self._counting:
            with self._metrics.rounds.measure():
                await self._count()

    async def _count(self) -> None:
        assert self._meter is not None  # noqa: S101 -- set on entry
        assert self._ledger is not None  # noqa: S101
        until_s = self._meter.now_s()
        window = await self._usage.read(self._meter.settled_s, until_s)
        if window is not None:
            self._meter.on_usage(window)
        fresh = self._meter.count(until_s, self._settings.grace_seconds, self._book, self._method)
        if self._quotas is not None:
            spare = sum_spare(each for each in fresh if each.end_s == until_s and each.seconds)
            fresh += self._quotas.count(until_s, sum_unused(self._cluster.list_quotas()), spare)
        self._pending += fresh
        facts = self._meter.list_facts()
        nodes = [each for each in facts if self._facts.get(each.node) != each]
        batch, state = list(self._pending), self._state | {COUNTED: str(until_s)}
        try:
            corrected = await self._correct_earlier(until_s)
            await asyncio.to_thread(self._ledger.put, [*corrected, *batch], state, nodes)
        except errors.KgweError as exc:
            if self._problem is None:
                log.warning("ledger_not_written", error=str(exc))
            self._problem = str(exc)
            self._metrics.failures += 1
            self._metrics.rounds.count_error()
            return
        del self._pending[: len(batch)]
        self._facts.update({each.node: each for each in nodes})
        self._problem = None
        await self._publish(until_s, len(batch), fresh)

    async def _correct_earlier(self, until_s: int) -> list[Segment]:
        """Return corrections of what an earlier process wrote, for starts and ends that were reported since then."""
        assert self._meter is not None  # noqa: S101 -- set on entry
        assert self._ledger is not None  # noqa: S101
        if self._resumed_s is None:
            return []
        resumed_s, grace_s = self._resumed_s, self._settings.grace_seconds
        if until_s > self._started_s + 2 * grace_s:
            self._resumed_s = None
        first_s = resumed_s - grace_s
        ends = self._meter.list_ends(resumed_s)
        started = self._meter.list_starts(first_s, resumed_s, self._book, self._method)
        starts = [each for each in started if each.holder.uid not in self._charged]
        if not ends and not starts:
            return []
        owners = self._meter.list_owners(self._book, resumed_s)
        holders = {*ends, *owners.values(), *(each.holder for each in starts)}
        stored = await asyncio.to_thread(load_recent, self._ledger.database, holders, SPARE, first_s)
        earlier = [each for each in stored if each.end_s <= resumed_s]
        self._charged |= {each.holder.uid for each in earlier if each.holder is not None}
        late = [each for each in starts if each.holder.uid not in self._charged]
        ended = end_holders(earlier, {each.uid: max(end_s, first_s) for each, end_s in ends.items()}, owners)
        begun = start_holders(late_starts.apply(earlier, ended), late)
        return list({each.key: each for each in (*ended, *begun)}.values())

    def _list_tasks(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield self._run()
        if self._settings.live_prices or self._live is not None:
            yield self._run_prices()

    async def _run_prices(self) -> None:
        """Keep live prices fresh beside the counting: a cloud that does not answer delays no count."""
        async with httpx2.AsyncClient(follow_redirects=False) as client:
            live = self._live or LivePrices(open_lists(self._settings.live_prices, client, self._settings.gcp_key_file))
            while True:
                await self.refresh_prices(live)
                await asyncio.sleep(_PRICES_S)

    async def refresh_prices(self, live: LivePrices) -> None:
        """Fetch the price lists that are due, and use what they say from now on."""
        if await live.refresh(int(self._clock())):
            try:
                self._book = await asyncio.to_thread(
                    load_book,
                    self._settings.price_paths,
                    with_defaults=self._settings.builtin_prices,
                    live=live.list_prices(),
                )
            except errors.KgweError as exc:
                log.warning("price_files_not_read", error=str(exc))
        self._metrics.prices_fetched_s = dict(live.fetched_s)

    async def _run(self) -> None:
        retained_s = 0.0
        while True:
            await self.count()
            if self._clock() - retained_s > _RETENTION_S and self._problem is None:
                await self._retain()
                retained_s = self._clock()
            # At the same phase of each interval, whatever the count took.
            interval = self._settings.tracking_seconds
            await asyncio.sleep(interval - self._clock() % interval)

    async def _retain(self) -> None:
        assert self._ledger is not None  # noqa: S101 -- set on entry
        try:
            await asyncio.to_thread(self._ledger.apply_retention, int(self._clock()))
        except errors.KgweError as exc:
            log.warning("retention_failed", error=str(exc))
        for path in self._settings.bill_paths:
            try:
                await asyncio.to_thread(self._import_bill, path)
            except errors.KgweError as exc:
                log.warning("bill_not_imported", error=str(exc))

    def _import_bill(self, path: Path) -> None:
        assert self._ledger is not None  # noqa: S101 -- set on entry
        bill, digest = bill_files.load_bill(path, effective=self._settings.bills_effective)
        result = bill_files.compare_bill(self._ledger, bill)
        if bill_files.store_bill(self._ledger, path.name, digest, result, int(self._clock())):
            log.info("history_restated", bill=path.name, billed=result.billed_micros, book=result.book_micros)

    async def _publish(self, until_s: int, written: int, fresh: list[Segment]) -> None:
        """Update the metrics: totals from the ledger, rates from the segments that go on."""
        assert self._ledger is not None  # noqa: S101 -- set on entry
        assert self._meter is not None  # noqa: S101
        metrics = self._metrics
        since_s = max(metrics.counted_until_s, self._started_s)
        if until_s > since_s:
            metrics.add_pods(fresh, since_s, until_s)
        metrics.counted_until_s = until_s
        metrics.segments += written
        metrics.node_failures = self._meter.failures
        metrics.unpriced = self._meter.list_unpriced(self._book)
        rates: dict[tuple[str, str], int] = {}
        by_bucket: dict[Bucket, int] = {}
        for each in fresh:
            if each.end_s == until_s and each.seconds:
                by_bucket[each.bucket] = by_bucket.get(each.bucket, 0) + each.rate
                if each.bucket in HELD and each.holder is not None:
                    key = each.holder.account.namespace, each.holder.account.team
                    rates[key] = rates.get(key, 0) + each.rate
        metrics.rates, metrics.bucket_rates = rates, by_bucket
        try:
            books, totals = await asyncio.to_thread(_sum_totals, self._ledger, until_s)
        except errors.KgweError as exc:
            log.warning("ledger_not_read", error=str(exc))
            return
        metrics.set_totals(books, totals)
        if self._on_counted is not None:
            await self._on_counted(LedgerReader(self._ledger.database), until_s, self._book.currency)


def _sum_totals(ledger: Ledger, until_s: int) -> tuple[Any, dict[tuple[str, str], int]]:
    reader = LedgerReader(ledger.database)
    found = reader.find_range()
    start_s = found[0] if found else until_s
    return reader.read(start_s, until_s, Dimension.NAMESPACE).books, reader.sum_teams(start_s, until_s)
