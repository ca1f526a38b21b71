"""The ledger: entries survive a restart, and one that cannot be read concerns itself alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from kgwe import errors
from kgwe.apps.optimizer.history.writer import StoreThread
from kgwe.apps.optimizer.idle.ledger import Entry, IdleLedger
from kgwe.forecast.waste.idle_policy import IdleRecord, Phase
from kgwe.store.history import HistoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NOW_S = 1_795_003_200.0


def entry(name: str = "notebook", **changes: Any) -> Entry:
    record = IdleRecord(phase=Phase.GRACE, idle_s=90.0, announced_grace_s=60.0)
    return Entry("team", "Job", name, record, saving_per_hour=3.0, **changes)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[StoreThread]:
    made = StoreThread(lambda: HistoryStore.open(str(tmp_path / "optimizer.db")))
    yield made
    await made.close()


async def test_entries_are_read_as_they_were_written(store: StoreThread):
    ledger = IdleLedger(store)
    written = entry(owner_group="batch", owner_kind="Job", owner_name="notebook", owner_uid="u", suspended_s=NOW_S)
    ledger.put(written)
    await ledger.save(NOW_S)
    again = IdleLedger(store)
    await again.load()
    assert again.entries == {written.key: written}
    kind = written.find_kind()
    assert kind is not None
    assert kind.resource.full_name == "jobs.batch"
    assert entry().find_kind() is None


async def test_an_entry_that_cannot_be_read_is_skipped(store: StoreThread):
    ledger = IdleLedger(store)
    ledger.put(entry("a"))
    await ledger.save(NOW_S)

    def damage(opened: HistoryStore) -> None:
        opened.put_document("idle", "team/Job/b", {"namespace": 7}, NOW_S)
        opened.put_document("idle", "team/Job/c", ["no entry"], NOW_S)

    await store.call(damage)
    again = IdleLedger(store)
    await again.load()
    assert [key[2] for key in again.entries] == ["a"]


async def test_a_dropped_entry_stays_dropped(store: StoreThread):
    ledger = IdleLedger(store)
    ledger.put(entry())
    await ledger.save(NOW_S)
    ledger.put(msgspec.structs.replace(entry(), suspensions=1))
    await ledger.drop(entry().key)
    await ledger.save(NOW_S)
    again = IdleLedger(store)
    await again.load()
    assert again.entries == {}
    await ledger.drop(entry().key)


async def test_entries_of_a_failed_write_are_written_with_the_next(tmp_path: Path):
    is_down = True

    def open_store() -> HistoryStore:
        if is_down:
            raise errors.Transient("the disk is full")
        return HistoryStore.open(str(tmp_path / "optimizer.db"))

    thread = StoreThread(open_store)
    ledger = IdleLedger(thread)
    ledger.put(entry())
    with pytest.raises(errors.Transient):
        await ledger.save(NOW_S)
    is_down = False
    await ledger.save(NOW_S)
    again = IdleLedger(thread)
    await again.load()
    assert list(again.entries) == [entry().key]
    await thread.close()


def test_the_saving_of_a_suspension_is_added_when_it_ends():
    ended = entry(suspended_s=NOW_S, saved_dollars=1.0).end_suspension(NOW_S + 7200)
    assert (ended.suspended_s, ended.saved_dollars) == (None, 7.0)


def test_a_clock_that_was_set_back_saves_nothing():
    assert entry(suspended_s=NOW_S).end_suspension(NOW_S - 7200).saved_dollars == 0


def test_without_a_price_nothing_is_added():
    unpriced = msgspec.structs.replace(entry(suspended_s=NOW_S), saving_per_hour=None)
    assert unpriced.end_suspension(NOW_S + 7200).saved_dollars == 0
