"""The ledger at size: a month of random segments, stored in batches, sent again in part, and read back as reports.

    events_per_s       segments stored per CPU second of this process, with the check whether they are stored already
    again_per_s        the same for segments that are sent a second time
    report_30d_ms      the report by namespace over 30 days, from the sums
    report_365d_ms     the same over 365 days; the other 335 days have fewer segments
    mb_per_million     size of the whole file after the month, per million segments
    unbalanced_microdollars   what the lines of all windows miss of the fleet's cost, and sums of segments; rounded up
    plain_rows_per_s   the baseline: the same rows by `executemany` of sqlite3 into a table without keys

Segments come from histories with price changes, MIG re-cuts, shares and claims; one in ten is late, one in ten is sent
twice. With a URL the same is measured on PostgreSQL after it, as `postgresql`. The server's CPU time is not in its
rates, so rates by the wall clock are given too.
"""

from __future__ import annotations

import gc
import itertools
import random
import sqlite3
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from kgwe.bench import report
from kgwe.costing.books import Dimension
from kgwe.costing.metering.division import Claim, GpuClaim, GpuCut, NodeCut
from kgwe.costing.metering.mig_weights import SlicePlace
from kgwe.costing.metering.timeline import ClaimSpan, NodeSpan, sweep_node
from kgwe.costing.money import DAY_S, HOUR_S, TICKS
from kgwe.costing.prices.book import Capacity
from kgwe.costing.segments import Account, Holder, Part, Segment
from kgwe.costing.split import Rates
from kgwe.model.gpu.mig import GEOMETRIES
from kgwe.store.ledger.ledger import Ledger
from kgwe.store.ledger.reader import LedgerReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kgwe.store.database import Database

# A Monday at midnight UTC.
_START_S: Final = 1_795_392_000
_MONTH: Final = 30
_YEAR: Final = 365
_NAMESPACES: Final = 60
_BATCH: Final = 20_000
_LATE: Final = 0.1
_GEOMETRY: Final = GEOMETRIES["A100-80GB"]
_LAYOUTS: Final = (
    (),
    (),
    (SlicePlace("3g.40gb", 0), SlicePlace("3g.40gb", 4)),
    tuple(SlicePlace("1g.10gb", start) for start in range(7)),
)
_SHIFT_S: Final = 8 * HOUR_S
_RUNS: Final = 5
_WINDOWS: Final = 20


@dataclass(frozen=True, slots=True)
class Options:
    segments: int = 1_000_000
    url: str = ""
    """An empty PostgreSQL database, to measure beside SQLite; empty: only SQLite."""
    seed: int = 1


def run(options: Options) -> report.Report:
    """Measure the ledger; Permanent if the database of `url` has segments already."""
    machine = report.examine_machine()
    with tempfile.TemporaryDirectory(prefix="kgwe-bench-cost-") as folder:
        metrics = _measure(options, Path(folder))
        if options.url:
            metrics["postgresql"] = _measure(options, Path(folder), options.url)
    params = asdict(options) | {"url": "postgresql" if options.url else ""}
    return report.Report("cost", params, metrics, machine)


def _measure(options: Options, folder: Path, url: str = "") -> dict[str, Any]:
    rng = random.Random(options.seed)  # noqa: S311 -- reproducible
    month = list(make_segments(options.segments, _START_S, rng))
    with Ledger.open(url or str(folder / "ledger.db")) as ledger:
        batches = _shuffle_late([month[n : n + _BATCH] for n in range(0, len(month), _BATCH)], rng)
        ledger.put(batches[0][:1])  # opens the tables before the clock runs
        # A million segments in memory are the benchmark's, not the engine's: the collector leaves them alone.
        gc.collect()
        gc.freeze()
        cpu_s, wall_s = _time(lambda: _put_all(ledger, batches))
        metrics: dict[str, Any] = {
            "events_per_s": sum(map(len, batches)) / cpu_s,
            "events_per_wall_s": sum(map(len, batches)) / wall_s,
            "mb_per_million": _measure_bytes(ledger.database) / len(month),
            "segments": len(month),
        }
        again = batches[: max(len(batches) // 10, 1)]
        cpu_s, wall_s = _time(lambda: _put_all(ledger, again))
        metrics["again_per_s"] = sum(map(len, again)) / cpu_s
        gc.unfreeze()
        before = make_segments(max(options.segments // 5, 1), _START_S - (_YEAR - _MONTH) * DAY_S, rng, _YEAR - _MONTH)
        ledger.put(list(before))
        metrics |= _measure_reports(LedgerReader(ledger.database), rng)
    if not url:
        metrics["plain_rows_per_s"] = _measure_plain(batches, folder / "plain.db")
    return metrics


def _measure_reports(reader: LedgerReader, rng: random.Random) -> dict[str, Any]:
    end_s = _START_S + _MONTH * DAY_S
    metrics: dict[str, Any] = {}
    for name, days in (("report_30d_ms", _MONTH), ("report_365d_ms", _YEAR)):
        window = end_s - days * DAY_S, end_s
        reader.read(*window, Dimension.NAMESPACE)
        metrics[name] = 1e3 * min(_time(lambda: reader.read(*window, Dimension.NAMESPACE))[1] for _ in range(_RUNS))  # noqa: B023 -- called at once
    wrong = 0
    for number in range(_WINDOWS):
        start = rng.randrange(_START_S, end_s)
        window = (_START_S, end_s) if not number else (start, rng.randrange(start, end_s) + 1)
        found, scanned = reader.sum_window(*window), reader.scan(*window)
        wrong += sum(
            abs(found[key].ticks - scanned[key].ticks) if key in found and key in scanned else TICKS
            for key in found.keys() | scanned.keys()
        )
        wrong += abs(reader.read(*window, Dimension.NAMESPACE).books.unbalanced)
    metrics["unbalanced_microdollars"] = -(-wrong // TICKS)
    metrics["scan_30d_ms"] = 1e3 * _time(lambda: reader.scan(_START_S, end_s))[1]
    return metrics


def make_segments(count: int, start_s: int, rng: random.Random, days: int = _MONTH) -> Iterator[Segment]:
    """Yield at least `count` segments, in the order of time, of nodes that live through all days."""
    found: list[Segment] = []
    shifts = days * DAY_S // _SHIFT_S
    for number in itertools.count():
        if len(found) >= count:
            break
        # Nodes get their shifts in an order in which each day has about as many segments.
        found += _make_node(f"node-{number // shifts}", start_s + number * 7 % shifts * _SHIFT_S, rng)
    found.sort(key=lambda each: each.start_s)
    yield from found


def _make_node(name: str, begin_s: int, rng: random.Random) -> tuple[Segment, ...]:
    """Return the segments of eight hours of a node: two prices, two layouts, and pods that come and go."""
    end_s = begin_s + _SHIFT_S
    change_s = begin_s + rng.randrange(1, _SHIFT_S)
    holders: dict[str, Holder] = {}
    spans = [
        NodeSpan(begin_s, change_s, _make_cut(name, rng)),
        NodeSpan(change_s, end_s, _make_cut(name, rng)),
    ]
    claims = []
    for number in range(rng.randint(20, 30)):
        uid = f"{name}-{begin_s}-{number}"
        namespace = rng.randrange(_NAMESPACES)
        account = Account(f"team-{namespace}", f"team-{namespace % 20}", f"project-{namespace % 30}")
        holders[uid] = Holder(uid, f"train-{number}-{begin_s % 99991}", f"Job/train-{begin_s % 997}", account)
        start = begin_s + rng.randrange(_SHIFT_S)
        part = rng.choice((Part.GPU, Part.GPU, Part.SLICE, Part.SHARE))
        held = GpuClaim(f"{name}/{rng.randrange(8)}", part, rng.choice((0, 2, 4)))
        claims.append(ClaimSpan(start, start + rng.randint(60, 4 * HOUR_S), Claim(uid, gpus=(held,))))
    segments = sweep_node(spans, claims, (begin_s, end_s), holders).segments
    return tuple(_add_use(each, rng) if each.holder else each for each in segments)


def _make_cut(name: str, rng: random.Random) -> NodeCut:
    cards = tuple(
        GpuCut(f"{name}/{number}", "A100", _GEOMETRY, rng.choice(_LAYOUTS), rng.choice((1, 1, 4)))
        for number in range(8)
    )
    rate = rng.randint(5_000_000, 30_000_000)
    return NodeCut(name, Rates(rate, 0, 0), cards, 0, 0, Capacity.ON_DEMAND, "a2-ultragpu-8g", f"price {rate % 50}")


def _add_use(each: Segment, rng: random.Random) -> Segment:
    known = each.seconds if rng.random() < 0.9 else 0  # noqa: PLR2004 -- a tenth of the time nothing is known
    return replace(each, measured_s=known, busy_ms=rng.randint(0, known * 1000))


def _shuffle_late(batches: list[list[Segment]], rng: random.Random) -> list[list[Segment]]:
    """Move one segment in ten into a later batch, and send one in ten twice."""
    sent: list[list[Segment]] = [[] for _ in batches]
    last = len(batches) - 1
    for number, batch in enumerate(batches):
        for each in batch:
            draw = rng.random()
            sent[min(number + 1, last) if draw < _LATE else number].append(each)
            if draw > 1 - _LATE:
                sent[min(number + rng.randint(0, 2), last)].append(each)
    return sent


def _put_all(ledger: Ledger, batches: Sequence[Sequence[Segment]]) -> None:
    for batch in batches:
        ledger.put(batch)


def _time(work: Callable[[], object]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def _measure_bytes(database: Database) -> int:
    with database.transaction() as connection:
        if database.is_postgresql:
            query = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'cost%'"
            return int(connection.execute(sa.text(query)).scalar_one())
        pages = int(connection.execute(sa.text("PRAGMA page_count")).scalar_one())
        return pages * int(connection.execute(sa.text("PRAGMA page_size")).scalar_one())


def _measure_plain(batches: Sequence[Sequence[Segment]], path: Path) -> float:
    rows = [
        [(each.start_s, 1, 1, int(each.bucket), each.seconds, each.rate, each.ppm, 1, 0, 0) for each in batch]
        for batch in batches
    ]
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE plain (a, b, c, d, e, f, g, h, i, j)")

    def write() -> None:
        for batch in rows:
            connection.executemany("INSERT INTO plain VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", batch)
            connection.commit()

    cpu_s, _ = _time(write)
    connection.close()
    return sum(map(len, rows)) / cpu_s
