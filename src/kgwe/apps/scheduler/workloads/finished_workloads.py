"""Deletes workloads that have ended, `ttlSecondsAfterFinished` after their end."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import structlog

from kgwe import errors
from kgwe.kube.api import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.cluster.workload.workload import Key, Workload
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)


class FinishedWorkloads:
    """Deletes each workload when its time has come. Its Job and pods are deleted by the garbage collector."""

    def __init__(
        self, client: KubeClient, *, requeue: Callable[[Key, float], None], now: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._requeue = requeue
        self._now = now

    async def expire(self, workload: Workload) -> bool:
        """Delete an ended workload if its time has come; returns whether it did. Otherwise look again then."""
        meta, ended = workload.meta, workload.status.completion_time
        if workload.ttl_s is None or not ended:
            return False
        left_s = timestamp.epoch_seconds(ended) + workload.ttl_s - self._now()
        if left_s > 0:
            self._requeue(workload.key, left_s)
            return False
        # Deleted meanwhile, or another workload has its name.
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._client.delete(workload.kind.resource, meta.name, meta.namespace, uid=meta.uid)
        log.info("workload_expired", workload=meta.key, ttl_s=workload.ttl_s)
        return True
