"""Writes what was observed to the store, and keeps it in memory until it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.apps.optimizer.history.runs import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.apps.optimizer.history.peaks import PeakTracker
    from kgwe.apps.optimizer.history.runs import RunTracker
    from kgwe.apps.optimizer.history.writer import StoreThread
    from kgwe.model.usage.fingerprint import Fingerprint
    from kgwe.model.usage.history import OutOfMemory, Run, UsagePeak
    from kgwe.model.usage.window import UsageWindow
    from kgwe.store.history import HistoryStore

# Minutes of usage that wait for a store that does not work: an hour. Runs and facts are bounded by the cluster.
_MAX_WINDOWS: Final = 60
_RETENTION_S: Final = 3600.0


class HistoryRecorder:
    """Runs, facts, peaks and minutes on their way to the store."""

    def __init__(self, tracker: RunTracker, peaks: PeakTracker, store: StoreThread) -> None:
        self._tracker = tracker
        self._peaks = peaks
        self._store = store
        self._fingerprints: dict[str, Fingerprint] = {}
        self._runs: dict[str, Run] = {}
        self._facts: dict[tuple[str, str, float], OutOfMemory] = {}
        self._hours: dict[tuple[str, int], UsagePeak] = {}
        self._windows: list[UsageWindow] = []
        self._retained_s = 0.0
        self.dropped_windows = 0

    @property
    def waiting(self) -> int:
        """How many observations are not stored yet."""
        return len(self._runs) + len(self._facts) + len(self._hours) + len(self._windows)

    def add_window(self, window: UsageWindow) -> None:
        """Take in a minute of usage. If the store does not work for an hour, the oldest minutes are dropped."""
        known = {key: facts.fingerprint.key for key, facts in self._tracker.pods.items()}
        self._peaks.add_window(window, known)
        self._windows.append(window)
        while len(self._windows) > _MAX_WINDOWS:
            self._windows.pop(0)
            self.dropped_windows += 1

    async def record(self, now_s: float) -> tuple[Sequence[Run], Sequence[Fingerprint]]:
        """Write everything that waits; raise a KgweError if the store does not work.

        Return the runs that were written, and their fingerprints.
        """
        batch = self._tracker.collect(now_s)
        self._fingerprints |= {each.key: each for each in batch.fingerprints}
        self._runs |= {each.uid: each for each in batch.runs}
        self._facts |= {(each.fingerprint, each.uid, each.at_s): each for each in batch.out_of_memory}
        self._hours |= {(each.fingerprint, each.hour_s): each for each in self._peaks.collect(now_s)}
        waiting = Batch(tuple(self._fingerprints.values()), tuple(self._runs.values()), tuple(self._facts.values()))
        hours, windows = tuple(self._hours.values()), tuple(self._windows)
        is_due = now_s - self._retained_s >= _RETENTION_S or now_s < self._retained_s

        def write(store: HistoryStore) -> None:
            store.put_fingerprints(waiting.fingerprints, now_s)
            store.put_runs(waiting.runs)
            store.put_out_of_memory(waiting.out_of_memory)
            store.put_peaks(hours)
            for window in windows:
                store.put_minutes(window)
            if is_due:
                store.apply_retention(now_s)

        await self._store.call(write)
        if is_due:
            self._retained_s = now_s
        self._forget(waiting, hours, windows)
        return waiting.runs, waiting.fingerprints

    def _forget(self, batch: Batch, hours: Sequence[UsagePeak], windows: Sequence[UsageWindow]) -> None:
        """Forget what was written; what came meanwhile stays."""
        for run in batch.runs:
            if self._runs.get(run.uid) is run:
                del self._runs[run.uid]
        for fact in batch.out_of_memory:
            self._facts.pop((fact.fingerprint, fact.uid, fact.at_s), None)
        for peak in hours:
            if self._hours.get((peak.fingerprint, peak.hour_s)) is peak:
                del self._hours[peak.fingerprint, peak.hour_s]
        for fingerprint in batch.fingerprints:
            self._fingerprints.pop(fingerprint.key, None)
        written = {id(window) for window in windows}
        self._windows = [window for window in self._windows if id(window) not in written]
