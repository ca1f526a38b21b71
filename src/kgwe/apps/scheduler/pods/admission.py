"""The webhook of the scheduler: pods of gangs get their seats while they are created. The leader answers from memory.

Whatever happens, the pod is created: without a seat it keeps its gate, and is pinned by a write when its gang is whole.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.kube.translate import admission_wire
from kgwe.telemetry import http
from kgwe.telemetry.messages import JSON, Reply

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from kgwe.apps.scheduler.metrics import Metrics
    from kgwe.apps.scheduler.pods.seat_offers import SeatOffers
    from kgwe.kube.translate.admission_wire import AdmissionRequest
    from kgwe.telemetry.messages import Request

log = structlog.get_logger(__name__)

PATH: Final = "/seat-v1-pod"
#: an API server has up to 600 requests in flight, each on a connection of its own; a pod may have 3 MiB
LIMITS: Final = http.Limits(body=8 << 20, connections=1900, per_peer=900)


class AdmissionApp:
    """The application behind the port."""

    def __init__(self, offers: SeatOffers, metrics: Metrics) -> None:
        self._offers = offers
        self._metrics = metrics

    def __call__(self, request: Request) -> Reply | Awaitable[Reply]:
        if request.path != PATH:
            return Reply(404, f"not found; pods are sent to {PATH}\n".encode())
        if request.method != "POST":
            return Reply(405, b"send a POST with an AdmissionReview\n")
        if request.too_large:
            return Reply(413, b"the AdmissionReview is too large\n")
        try:
            asked = admission_wire.read_review(request.body)
        except errors.Permanent as exc:
            return Reply(400, f"{exc}\n".encode())
        return self._answer(asked)

    async def _answer(self, asked: AdmissionRequest) -> Reply:
        started = time.perf_counter()
        try:
            patch = await self._offers.find_seat(asked)
        except asyncio.CancelledError:
            raise
        except Exception:  # one strange pod must be created as it is
            log.exception("pod_not_understood", namespace=asked.namespace)
            patch = []
        self._metrics.offer_seconds.observe(time.perf_counter() - started)
        return Reply(200, admission_wire.encode_reply(asked.uid, patch), JSON)
