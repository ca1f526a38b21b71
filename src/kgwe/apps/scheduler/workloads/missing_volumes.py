"""Notices when a PersistentVolumeClaim exists that a workload waits for: its next attempt begins at once.

Claims are not watched: most of them are of no concern to workloads with GPUs. The few that a workload misses are read
every few seconds, at most two per second for all workloads together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.scheduler.workloads.attempt import Attempt
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.client.client import KubeClient

#: Seconds between two checks of one claim.
CHECK_S: Final = 5.0
# Seconds between two checks, of all claims together.
_ALL_CHECKS_S: Final = 0.5


class MissingVolumes:
    """Checks claims that did not exist when a workload was last placed."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._next_check_at = 0.0

    async def end_pause(self, workload: Workload, attempt: Attempt) -> bool:
        """Let the next attempt begin if the claim that the workload lacked exists now; returns whether it does."""
        now = self._clock()
        if not attempt.volume or now < self._next_check_at:
            return False
        self._next_check_at = now + _ALL_CHECKS_S
        path = f"/api/v1/namespaces/{workload.meta.namespace}/persistentvolumeclaims/{attempt.volume}"
        try:
            await self._client.request("GET", path)
        except errors.KgweError:
            return False
        attempt.volume, attempt.retry_at = "", 0.0
        return True
