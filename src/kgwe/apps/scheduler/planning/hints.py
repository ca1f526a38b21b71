"""Placement hints of waiting workloads: node by node, how much faster or slower each would run there."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.apps.scheduler.deps import HintSource
    from kgwe.cluster.workload.workload import Workload
    from kgwe.model.usage.description import WorkloadDescription

# Workloads of one refresh that are asked about: the others wait far behind.
_MAX_WORKLOADS: Final = 200
_MAX_LISTED: Final = 1000
# Hints describe what runs beside a workload now: older ones are not used.
_KEEP_S: Final = 300.0


class PlacementHints:
    """Hints for workloads of one pod that wait. Equal workloads are asked about once."""

    topic: Final = "hints"
    without: Final = "workloads are placed without hints"
    max_workloads: Final = _MAX_LISTED

    def __init__(
        self,
        source: HintSource,
        describe: Callable[[Workload], WorkloadDescription | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`describe` is called in a thread."""
        self._source = source
        self._describe = describe
        self._clock = clock
        self._found: dict[str, Mapping[str, float]] = {}
        self._found_at = clock()

    def find(self, owner: str) -> Mapping[str, float]:
        """Return node -> points for an owner; empty if nothing is known, or if it is too old."""
        return self._found.get(owner, {}) if self._clock() - self._found_at < _KEEP_S else {}

    async def update(self, workloads: Mapping[str, Workload]) -> None:
        known: dict[str, Mapping[str, float]] = {}
        found: dict[str, Mapping[str, float]] = {}
        for owner, key, workload in await asyncio.to_thread(self._describe_alone, workloads):
            if key not in known:
                known[key] = await self._source.find_hint(workload)
            found[owner] = known[key]
        self._found, self._found_at = found, self._clock()

    async def close(self) -> None:
        await self._source.close()

    def _describe_alone(self, workloads: Mapping[str, Workload]) -> list[tuple[str, str, WorkloadDescription]]:
        """Return owner, fingerprint and description of workloads with one pod."""
        described = ((owner, self._describe(workload)) for owner, workload in workloads.items())
        alone = ((owner, each) for owner, each in described if each is not None and each.pods == 1)
        return [(owner, each.make_fingerprint().key, each) for owner, each in itertools.islice(alone, _MAX_WORKLOADS)]
