"""The thread of the store: a store that is deleted or replaced while it is in use is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kgwe import errors
from kgwe.apps.optimizer.history.writer import StoreThread
from kgwe.store.history import HistoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Bed:
    """A store in use, with the losses that were reported."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.losses = 0
        self.now = 0.0
        self.thread = self.start()

    def start(self) -> StoreThread:
        return StoreThread(lambda: HistoryStore.open(str(self.path)), on_loss=self._lose, clock=lambda: self.now)

    def _lose(self) -> None:
        self.losses += 1

    async def use(self) -> None:
        await self.thread.call(lambda store: store.put_document("kind", "name", {}, 0.0))

    def delete(self) -> None:
        for each in self.path.parent.glob(f"{self.path.name}*"):
            if not each.name.endswith(".lock"):
                each.unlink()


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    made = Bed(tmp_path / "optimizer.db")
    await made.use()
    assert made.thread.problem() is None
    yield made
    await made.thread.close()


async def test_a_store_that_is_deleted_while_it_is_in_use_is_reported_for_some_minutes(bed: Bed):
    bed.delete()
    await bed.use()
    assert bed.losses == 1
    assert "deleted or replaced while it was in use" in (bed.thread.problem() or "")
    bed.now += 600
    assert bed.thread.problem() is None
    await bed.use()
    assert bed.losses == 1


async def test_a_store_that_is_lost_with_an_error_between_is_reported(bed: Bed):
    bed.path.unlink()
    with pytest.raises(errors.Permanent, match="-wal has its last writes"):
        await bed.use()
    bed.delete()
    await bed.use()
    assert bed.losses == 1


async def test_a_new_process_on_the_same_store_reports_nothing(bed: Bed):
    await bed.thread.close()
    bed.thread = bed.start()
    await bed.use()
    assert (bed.losses, bed.thread.problem()) == (0, None)
