"""Answers AdmissionReviews from memory. Whatever happens, the pod is allowed: an error means no change."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.apps.webhook import mutations
from kgwe.kube.translate import admission_wire
from kgwe.telemetry.messages import JSON, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kgwe.apps.webhook.metrics import Metrics
    from kgwe.kube.api.kgwe.rightsizingdecision import RightsizingDecisionSpec
    from kgwe.kube.translate.admission_wire import AdmissionRequest, Patch
    from kgwe.telemetry.messages import Request

log = structlog.get_logger(__name__)

PATH: Final = "/mutate-v1-pod"


class AdmissionHandler:
    """The application behind the webhook's port."""

    def __init__(
        self,
        *,
        find_decisions: Callable[[str], RightsizingDecisionSpec | None],
        list_revoked: Callable[[], Collection[str]],
        exempt: Collection[str],
        metrics: Metrics,
    ) -> None:
        """`find_decisions`: namespace -> its decisions. `exempt`: namespaces in which nothing is changed."""
        self._find_decisions = find_decisions
        self._list_revoked = list_revoked
        self._exempt = frozenset(exempt)
        self._metrics = metrics

    def __call__(self, request: Request) -> Reply:
        if request.path != PATH:
            return Reply(404, f"not found; pods are sent to {PATH}\n".encode())
        if request.method != "POST":
            return Reply(405, b"send a POST with an AdmissionReview\n")
        if request.too_large:
            return Reply(413, b"the AdmissionReview is too large\n")
        started = time.perf_counter()
        try:
            asked = admission_wire.read_review(request.body)
        except errors.Permanent as exc:
            self._metrics.requests.labels("malformed").inc()
            return Reply(400, f"{exc}\n".encode())
        patch, outcome = self._decide(asked)
        if not asked.dryRun:
            self._metrics.requests.labels(outcome).inc()
            self._metrics.seconds.observe(time.perf_counter() - started)
        return Reply(200, admission_wire.encode_reply(asked.uid, patch), JSON)

    def _decide(self, request: AdmissionRequest) -> tuple[Patch, str]:
        pod = request.object
        if pod is None or request.operation != "CREATE" or request.namespace in self._exempt:
            return [], "unchanged"
        try:
            patch = mutations.give_seat(pod, request.userInfo.username, self._list_revoked())
            patch = patch or mutations.shrink_request(pod, self._find_decisions(request.namespace))
        except Exception:  # one strange pod must be created as it is
            log.exception("pod_not_understood", namespace=request.namespace)
            return [], "error"
        return patch, "changed" if patch else "unchanged"
