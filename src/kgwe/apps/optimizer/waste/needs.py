"""What pods need beyond the judged window: from the history of their fingerprints and from their declarations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.forecast.waste.alternatives import Needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.apps.optimizer.history.writer import StoreThread
    from kgwe.model.usage.history import OutOfMemory, UsagePeak
    from kgwe.store.history import HistoryStore

_SPOT_OK: Final = ("gpu-autoscaler.io/spot-ok", "kgwe.nvidia.io/spot-ok")
#: owners that can be suspended and restored
SUSPENDABLE: Final = frozenset(
    {"GPUWorkload", "Job", "Deployment", "ReplicaSet", "StatefulSet", "LeaderWorkerSet", "Notebook"}
)
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class UsageHistory:
    """What is stored about the GPU use of one fingerprint."""

    peaks: tuple[UsagePeak, ...] = ()
    out_of_memory: tuple[OutOfMemory, ...] = ()

    @property
    def memory_mib(self) -> float | None:
        """The highest memory use; None if it was not measured."""
        return max((each.memory_peak_mib for each in self.peaks if each.memory_peak_mib is not None), default=None)

    @property
    def too_small_mib(self) -> float | None:
        """Memory that was not enough: the device's where it is known, else the highest use; None if it always was."""
        if not self.out_of_memory:
            return None
        known = [each.limit_mib for each in self.out_of_memory if each.limit_mib is not None]
        return max(known, default=self.memory_mib)


NO_HISTORY: Final = UsageHistory()


class HistoryNeeds:
    """Needs of pods. The history of live fingerprints is read in the background."""

    def __init__(
        self,
        store: StoreThread,
        *,
        is_preallocator: Callable[[PodFacts], bool] = lambda _: False,
        is_spot: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`is_spot`: whether a node is spot capacity."""
        self._store = store
        self._is_preallocator = is_preallocator
        self._is_spot = is_spot
        self._known: Mapping[str, UsageHistory] = {}

    async def refresh(self, fingerprints: Iterable[str]) -> None:
        """Read the history of these fingerprints, and forget others; raise a KgweError if the store does not work."""
        self._known = await self._load(sorted(set(fingerprints)))

    async def add(self, fingerprints: Iterable[str]) -> None:
        """Read the history of these fingerprints unless it is known; raise a KgweError if the store does not work."""
        missing = sorted(set(fingerprints) - self._known.keys())
        if missing:
            self._known = {**self._known, **await self._load(missing)}

    async def _load(self, keys: Sequence[str]) -> dict[str, UsageHistory]:
        def load(store: HistoryStore) -> dict[str, UsageHistory]:
            return {
                key: UsageHistory(tuple(store.load_peaks(key)), tuple(store.load_out_of_memory(key))) for key in keys
            }

        return await self._store.call(load)

    def find_history(self, fingerprint: str) -> UsageHistory:
        """Return what is known of a fingerprint."""
        return self._known.get(fingerprint, NO_HISTORY)

    def find_needs(self, facts: PodFacts) -> Needs:
        """Return what is known of a pod."""
        known = self.find_history(facts.fingerprint.key)
        return Needs(
            memory_mib=known.memory_mib,
            too_small_mib=known.too_small_mib,
            is_preallocator=self._is_preallocator(facts),
            history_s=len(known.peaks) * _HOUR_S,
            can_suspend=facts.owner_kind in SUSPENDABLE,
            is_spot=self._is_spot(facts.node),
            is_spot_ok=any(facts.annotations.get(name) == "true" for name in _SPOT_OK),
        )
