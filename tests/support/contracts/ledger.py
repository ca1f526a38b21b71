"""What the cost engine relies on in a ledger. Each function takes an empty ledger.

SQLite and PostgreSQL keep all of it.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from tests.support.builders.costs import T0, Everyone, make_history, use_of

from kgwe import errors
from kgwe.costing import books
from kgwe.costing.bills.lines import Bill, BillLine
from kgwe.costing.bills.reconcile import reconcile
from kgwe.costing.books import Dimension
from kgwe.costing.charges import Filter, attribute_charges
from kgwe.costing.metering.late_ends import SPARE
from kgwe.costing.metering.timeline import sweep_node
from kgwe.costing.segments import Account, Bucket, Segment
from kgwe.store.address import parse_address
from kgwe.store.ledger.charges import ChargeReader
from kgwe.store.ledger.ledger import Ledger, NodeFacts, StoredBill
from kgwe.store.ledger.reader import LedgerReader
from kgwe.store.ledger.recent import load_recent
from kgwe.store.ledger.schema import HOURS, LEDGER, METADATA, SEGMENTS
from kgwe.store.migration import read_revision, upgrade_to

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR = 3600
DAY = 86_400


def make_segments(seeds: range, *, spread_s: int = 5 * HOUR) -> list[Segment]:
    """Segments of many nodes over days, some with measured use."""
    found = []
    for seed in seeds:
        nodes, claims = make_history(seed, 9_000)
        shift = random.Random(seed).randrange(0, spread_s * len(seeds))
        swept = sweep_node(nodes, claims, (T0, T0 + 9_000), Everyone())
        for each in swept.segments:
            moved = replace(
                each,
                start_s=each.start_s + shift,
                end_s=each.end_s + shift,
                piece=each.piece._replace(node=f"node-{seed}"),
            )
            found.append(use_of(moved, seed) if moved.holder else moved)
    return [part for each in found for part in split_at_midnight(each)]


def split_at_midnight(each: Segment) -> list[Segment]:
    midnight = (each.start_s // DAY + 1) * DAY
    return list(each.cut(midnight)) if each.end_s > midnight else [each]


def windows_equal_the_sum_of_segments(ledger: Ledger) -> None:
    segments = make_segments(range(20))
    ledger.put(segments)
    reader = LedgerReader(ledger.database)
    first, last = min(each.start_s for each in segments), max(each.end_s for each in segments)
    rng = random.Random(1)
    edges = [first, last, T0 // DAY * DAY, T0 // HOUR * HOUR, *(rng.randrange(first, last) for _ in range(4))]
    for start, end in itertools.pairwise(edges):
        window = min(start, end), max(start, end)
        expected = books.keep_books(segments, *window)
        found = reader.read(*window, Dimension.NAMESPACE)
        assert found.books.by_bucket == {key: each for key, each in expected.by_bucket.items() if each != books.Sums()}
        assert found.books.unbalanced == 0
        assert reader.sum_window(*window) == reader.scan(*window)
        for by in Dimension:
            lines = books.attribute(segments, *window, by)
            assert reader.read(*window, by).lines == lines, by


def a_batch_that_is_sent_again_changes_nothing(ledger: Ledger) -> None:
    segments = make_segments(range(5))
    ledger.put(segments)
    before = dump(ledger)
    rng = random.Random(2)
    ledger.put(rng.sample(segments, len(segments) // 2) * 2)
    assert dump(ledger) == before


def a_segment_that_grows_or_shrinks_replaces_itself(ledger: Ledger) -> None:
    final = make_segments(range(8))
    rng = random.Random(3)
    drafts = [
        replace(each, end_s=each.start_s + rng.randint(1, DAY - each.start_s % DAY), measured_s=0, busy_ms=0)
        for each in final
    ]
    ledger.put(drafts)
    ledger.put(final)
    window = min(each.start_s for each in final), max(each.end_s for each in final)
    reader = LedgerReader(ledger.database)
    assert reader.read(*window, Dimension.POD).lines == books.attribute(final, *window, Dimension.POD)
    assert reader.sum_window(*window) == reader.scan(*window)


def a_segment_without_length_is_removed(ledger: Ledger) -> None:
    segments = make_segments(range(3))
    ledger.put(segments)
    ledger.put([replace(each, end_s=each.start_s, measured_s=0, busy_ms=0) for each in segments])
    with ledger.database.transaction() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(SEGMENTS)).scalar() == 0
        assert connection.execute(sa.select(sa.func.sum(HOURS.c.ticks))).scalar() == 0


def state_is_stored_with_the_segments(ledger: Ledger) -> None:
    ledger.put(make_segments(range(1)), {"settled_s": "100"})
    ledger.put([], {"settled_s": "200", "method": "market"})
    assert ledger.load_state() == {"settled_s": "200", "method": "market"}


def a_report_can_be_filtered(ledger: Ledger) -> None:
    segments = make_segments(range(4))
    ledger.put(segments)
    window = min(each.start_s for each in segments), max(each.end_s for each in segments)
    reader = LedgerReader(ledger.database)
    everything = reader.read(*window, Dimension.NAMESPACE).lines
    for namespace, expected in everything.items():
        for by in (Dimension.NAMESPACE, Dimension.WORKLOAD, Dimension.NODE):
            lines = reader.read(*window, by, Filter(namespace=namespace)).lines
            assert sum(each.ticks for each in lines.values()) == expected.ticks


def old_segments_go_and_their_sums_stay(ledger: Ledger) -> None:
    old, new = make_segments(range(2)), make_segments(range(2, 4))
    recent = [replace(each, start_s=each.start_s + 100 * DAY, end_s=each.end_s + 100 * DAY) for each in new]
    ledger.put([*old, *recent])
    reader = LedgerReader(ledger.database)
    start, end = min(each.start_s for each in old) // DAY * DAY, (max(each.end_s for each in old) // DAY + 1) * DAY
    before = reader.sum_window(start, end)
    ledger.apply_retention(10**11)  # a clock that jumps ahead deletes nothing that is new
    assert reader.sum_window(start, end) == before
    assert reader.scan(start, end) == {}
    assert reader.scan(start + 90 * DAY, end + 110 * DAY) != {}
    ledger.apply_retention(10**11)
    ledger.put([replace(each, start_s=each.start_s + 300 * DAY, end_s=each.end_s + 300 * DAY) for each in recent])
    ledger.apply_retention(10**11)
    assert reader.sum_window(start, end) == {}


def the_views_of_users_show_dollars(ledger: Ledger) -> None:
    segments = make_segments(range(3))
    ledger.put(segments)
    expected = sum(each.ticks for each in segments if each.bucket is Bucket.FLEET) / 3.6e9
    with ledger.database.transaction() as connection:
        for view, column in (
            ("cost_data", "cost"),
            ("cost_hourly_summary", "total_cost"),
            ("cost_daily_summary", "total_cost"),
        ):
            query = sa.text(f"SELECT sum({column}) FROM {view} WHERE bucket = 'fleet'")  # noqa: S608 -- constants
            assert abs(float(connection.execute(query).scalar_one()) - expected) < 1e-6, view
        for view in ("cost_savings", "budget_tracking"):
            assert connection.execute(sa.text(f"SELECT count(*) FROM {view}")).scalar() == 0  # noqa: S608 -- a constant


def charges_equal_the_sums(ledger: Ledger) -> None:
    segments = make_segments(range(8))
    ledger.put(segments)
    first, last = min(each.start_s for each in segments), max(each.end_s for each in segments)
    reader, charges = LedgerReader(ledger.database), ChargeReader(ledger.database)
    for window in ((first, last), (first + 1234, last - 4321)):
        for period_s in (HOUR, DAY):
            found = charges.read(*window, period_s)
            assert all(each.end_s - each.start_s <= period_s for each in found)
            for by in Dimension:
                assert attribute_charges(found, by) == reader.read(*window, by), (by, period_s)


def a_bill_restates_history(ledger: Ledger) -> None:
    segments = make_segments(range(6))
    ledger.put(segments, None, [NodeFacts(f"node-{seed}", f"aws:///a/i-{seed}") for seed in range(5)])
    charges = ChargeReader(ledger.database)
    start, end = (min(each.start_s for each in segments), max(each.end_s for each in segments))
    metered = charges.list_node_hours(start // HOUR * HOUR, (end // HOUR + 1) * HOUR)
    assert sum(each.ticks for each in metered.values()) == sum(
        each.ticks for each in segments if each.bucket is Bucket.FLEET
    )
    resources = charges.list_resources()
    assert resources == {f"i-{seed}": f"node-{seed}" for seed in range(5)}
    rng = random.Random(4)
    lines = []
    for key, each in sorted(metered.items()):
        draw = rng.random()
        if key.node == "node-5" or draw < 0.1:
            continue  # a node of another cloud, or an hour that the bill lacks
        resource = "i-unknown" if draw < 0.2 else f"i-{key.node[-1]}"
        micros = Fraction(each.ticks * 97, 360_000) if each.ticks else Fraction(1_500_000)
        lines.append(BillLine("", resource, key.hour * HOUR, (key.hour + 1) * HOUR, micros))
    bill = Bill(tuple(lines), "USD", "test")
    found = reconcile(bill, metered, resources)
    stored = StoredBill("aws.csv", "abc", 1, bill.start_s, bill.end_s, "USD", found.billed_micros)
    assert ledger.put_bill(stored, found.restated)
    assert not ledger.put_bill(stored, found.restated)  # the same bill again changes nothing
    restated = charges.read(start // HOUR * HOUR, (end // HOUR + 1) * HOUR, restated=True)
    known = [each for each in restated if each.place.node != "node-5"]
    books_ = attribute_charges(known, Dimension.NAMESPACE).books
    assert books_.fleet == found.billed_micros * 3600
    assert books_.unbalanced == 0
    assert attribute_charges(restated, Dimension.NAMESPACE).books.unbalanced == 0
    assert [each[4] for each in charges.load_bills()] == [found.billed_micros]


def dump(ledger: Ledger) -> list[list[tuple[int, ...]]]:
    with ledger.database.transaction() as connection:
        return [sorted(map(tuple, connection.execute(sa.select(table)))) for table in (SEGMENTS, HOURS)]


def the_last_segments_are_read_as_they_were_written(ledger: Ledger) -> None:
    segments = make_segments(range(6))
    ledger.put(segments)
    last_s = max(each.end_s for each in segments)
    since_s = last_s - 2000
    recent = [each for each in segments if each.end_s > since_s]
    holders = {each.holder for each in recent if each.holder is not None}
    renamed = {replace(each, account=Account("other")) for each in holders}
    expected = {each for each in recent if each.holder is not None or each.bucket in SPARE}
    assert expected
    for wanted in (holders, renamed):
        assert set(load_recent(ledger.database, wanted, SPARE, since_s)) == expected
    assert not any(each.holder for each in load_recent(ledger.database, [], SPARE, since_s))
    assert load_recent(ledger.database, holders, SPARE, last_s) == []


CONTRACT = (
    the_last_segments_are_read_as_they_were_written,
    windows_equal_the_sum_of_segments,
    a_batch_that_is_sent_again_changes_nothing,
    a_segment_that_grows_or_shrinks_replaces_itself,
    a_segment_without_length_is_removed,
    state_is_stored_with_the_segments,
    a_report_can_be_filtered,
    old_segments_go_and_their_sums_stay,
    the_views_of_users_show_dollars,
    charges_equal_the_sums,
    a_bill_restates_history,
)


def a_ledger_of_the_first_version_is_migrated(make_url: Callable[[], str], donor: Ledger) -> None:
    """Fill tables of the first version, open them with this one, and compare. `make_url`: of an empty database."""
    segments = make_segments(range(5))
    donor.put(segments, {"counted_until_s": "7"})
    with donor.database.transaction() as connection:
        tables = {
            table.name: [row._asdict() for row in connection.execute(sa.select(table))]
            for table in METADATA.sorted_tables
        }
    expected = dump(donor)
    url = make_url()
    address = parse_address(url)
    engine = sa.create_engine(address.url)
    with engine.begin() as connection:
        upgrade_to(connection, LEDGER, "0001")
        assert read_revision(connection, address, LEDGER) == "0001"
        old = set(sa.inspect(connection).get_table_names())
        for table in METADATA.sorted_tables:
            if table.name in old and tables[table.name]:
                connection.execute(sa.insert(table), tables[table.name])
    engine.dispose()
    with pytest.raises(errors.Transient, match="no ledger of this version yet"):
        Ledger.open(url, read_only=True)
    with Ledger.open(url) as migrated:
        assert dump(migrated) == expected
        assert migrated.load_state() == {"counted_until_s": "7"}
        migrated.put(segments)
        assert dump(migrated) == expected
        with migrated.database.transaction() as connection:
            measured = connection.execute(sa.text("SELECT count(*) FROM cost_data WHERE utilization > 0")).scalar()
        assert measured
