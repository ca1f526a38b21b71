"""What pods need: from the history of their fingerprints and from their declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.builders.assessments import facts
from tests.support.builders.usage import NOON_S, fingerprint, out_of_memory, peak, run

from kgwe import errors
from kgwe.apps.optimizer.history.writer import StoreThread
from kgwe.apps.optimizer.waste.needs import HistoryNeeds
from kgwe.store.history import HistoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kgwe.forecast.waste.alternatives import Needs

POD = facts()
KEY = POD.fingerprint.key


class Bed:
    def __init__(self, path: Path) -> None:
        self.fails = False
        self.path = path
        self.store = StoreThread(self._open)

    def _open(self) -> HistoryStore:
        if self.fails:
            raise errors.Transient("the disk is full")
        return HistoryStore.open(str(self.path))

    async def put(self, *memory_mib: float | None, limits: tuple[float | None, ...] = ()) -> None:
        peaks = [peak(KEY, NOON_S + 3600 * hour, each) for hour, each in enumerate(memory_mib)]
        facts = [out_of_memory(KEY, NOON_S + hour, limit_mib=each) for hour, each in enumerate(limits)]

        def write(store: HistoryStore) -> None:
            store.put_fingerprints([POD.fingerprint], NOON_S)
            store.put_runs([run(of=KEY)])
            store.put_peaks(peaks)
            store.put_out_of_memory(facts)

        await self.store.call(write)


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    made = Bed(tmp_path / "optimizer.db")
    yield made
    await made.store.close()


async def read(bed: Bed) -> Needs:
    needs = HistoryNeeds(bed.store)
    await needs.refresh([KEY])
    return needs.find_needs(POD)


async def test_the_highest_memory_of_all_hours_counts(bed: Bed):
    await bed.put(1000, 5000, 2000)
    found = await read(bed)
    assert (found.memory_mib, found.too_small_mib, found.history_s) == (5000, None, 3 * 3600)


async def test_without_history_memory_is_unknown(bed: Bed):
    found = await read(bed)
    assert (found.memory_mib, found.too_small_mib, found.history_s) == (None, None, 0)


async def test_hours_without_samples_do_not_count_as_zero(bed: Bed):
    await bed.put(None, None)
    assert (await read(bed)).memory_mib is None


async def test_memory_that_was_not_enough_is_that_of_the_largest_device(bed: Bed):
    await bed.put(5000, limits=(10_000, 20_000, None))
    assert (await read(bed)).too_small_mib == 20_000


async def test_memory_that_was_not_enough_is_the_use_where_the_device_is_unknown(bed: Bed):
    await bed.put(5000, limits=(None,))
    assert (await read(bed)).too_small_mib == 5000


async def test_a_store_that_does_not_work_leaves_what_is_known(bed: Bed):
    await bed.put(5000)
    needs = HistoryNeeds(bed.store)
    await needs.refresh([KEY])
    await bed.store.close()
    bed.store, bed.fails = StoreThread(bed._open), True
    needs._store = bed.store
    with pytest.raises(errors.Transient):
        await needs.refresh([KEY])
    assert needs.find_needs(POD).memory_mib == 5000


async def test_fingerprints_without_pods_are_forgotten(bed: Bed):
    await bed.put(5000)
    needs = HistoryNeeds(bed.store)
    await needs.refresh([KEY])
    await needs.refresh([fingerprint().key])
    assert needs.find_needs(POD).memory_mib is None


@pytest.mark.parametrize(
    ("changes", "can_suspend", "is_spot_ok"),
    [
        ({}, True, False),
        ({"owner": ""}, False, False),
        ({"annotations": {"gpu-autoscaler.io/spot-ok": "true"}}, True, True),
        ({"annotations": {"kgwe.nvidia.io/spot-ok": "yes"}}, True, False),
    ],
)
async def test_declarations_of_a_pod(bed: Bed, changes, can_suspend, is_spot_ok):
    found = HistoryNeeds(bed.store, is_spot=lambda node: node == "n1").find_needs(facts(**changes))
    assert (found.can_suspend, found.is_spot_ok, found.is_spot) == (can_suspend, is_spot_ok, True)
