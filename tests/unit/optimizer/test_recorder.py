"""The recorder: what is observed reaches the store, also after it did not work for a while."""

import pytest
from tests.support.builders.optimizer_pods import START_S, read

from kgwe import errors
from kgwe.apps.optimizer.history.peaks import PeakTracker
from kgwe.apps.optimizer.history.recorder import HistoryRecorder
from kgwe.apps.optimizer.history.runs import RunTracker
from kgwe.apps.optimizer.history.writer import StoreThread
from kgwe.apps.optimizer.waste.needs import HistoryNeeds
from kgwe.model.usage.window import Device, DeviceKey, PodKey, make_window
from kgwe.store.history import HistoryStore

NOW_S = START_S + 900


class Bed:
    """A recorder on a real SQLite file that can be made to fail."""

    def __init__(self, path):
        self.path = path
        self.fails = False
        self.tracker = RunTracker()
        self.store = StoreThread(self._open)
        self.recorder = HistoryRecorder(self.tracker, PeakTracker(), self.store)

    def _open(self):
        if self.fails:
            raise errors.Transient("the disk is full")
        return HistoryStore.open(str(self.path))

    async def load_runs(self):
        return await self.store.call(lambda store: store.load_runs(0.0))


@pytest.fixture
async def bed(tmp_path):
    made = Bed(tmp_path / "optimizer.db")
    yield made
    await made.store.close()


def _minute(start_s=NOW_S - 60, memory=1000.0):
    window = make_window(start_s, 60.0, 1, (Device(DeviceKey("n1", "GPU-1", pod=PodKey("ml", "train-0"))),))
    window.activity[0] = 0.5
    window.memory_used_mib[0] = memory
    return window


async def test_runs_facts_and_peaks_are_stored(bed):
    oom = {"reason": "OOMKilled", "exitCode": 137}
    ended = "2026-11-01T10:10:00Z"
    bed.tracker.set_pod(read("train-0", phase="Failed", ended=ended, terminated=oom))
    bed.recorder.add_window(_minute())
    await bed.recorder.record(NOW_S)
    (run,) = await bed.load_runs()
    assert (run.uid, run.lasted_s, run.oom_kills) == ("ml/uid-train", 600, 1)
    assert bed.recorder.waiting == 0
    needs = HistoryNeeds(bed.store)
    facts = read("train-0")
    await needs.refresh([facts.fingerprint.key])
    found = needs.find_needs(facts)
    assert (found.memory_mib, found.too_small_mib) == (1000, 1000)


async def test_nothing_is_lost_while_the_store_does_not_work(bed):
    bed.fails = True
    bed.tracker.set_pod(read("train-0", phase="Succeeded", ended="2026-11-01T10:10:00Z"))
    bed.recorder.add_window(_minute())
    with pytest.raises(errors.Transient, match="disk is full"):
        await bed.recorder.record(NOW_S)
    assert bed.store.problem() == "the disk is full"
    bed.tracker.drop_pod("pod-train-0")
    bed.fails = False
    await bed.recorder.record(NOW_S + 60)
    assert [run.uid for run in await bed.load_runs()] == ["ml/uid-train"]
    assert bed.store.problem() is None
    assert bed.recorder.waiting == 0


async def test_minutes_are_bounded_while_the_store_does_not_work(bed):
    bed.fails = True
    for number in range(100):
        bed.recorder.add_window(_minute(NOW_S + 60 * number))
    assert bed.recorder.dropped_windows == 40


async def test_a_run_without_observation_is_not_stored(bed):
    await bed.recorder.record(NOW_S)
    assert await bed.load_runs() == []
