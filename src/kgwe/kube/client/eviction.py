"""Eviction of pods through the API server, and pods whose end a Job does not count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.client import client as kube_client

if TYPE_CHECKING:
    from kgwe.kube.api import core
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

#: finalizer of the Job controller, on every pod it has to count
TRACKING: Final = "batch.kubernetes.io/job-tracking"


async def evict_pod(client: KubeClient, pod: core.Pod) -> None:
    """Ask the API server to end the pod; DisruptionBudgetRefused or NotFound when it cannot."""
    meta = pod.metadata
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta.name, "namespace": meta.namespace},
        "deleteOptions": {"preconditions": {"uid": meta.uid}},
    }
    try:
        await client.create(resources.EVICTION, body, meta.namespace, name=meta.name, subresource="eviction")
    except errors.Conflict as exc:
        raise errors.NotFound(str(exc)) from exc  # another pod of that name


async def remove_tracking_finalizer(client: KubeClient, pod: core.Pod) -> None:
    """Let the end of a Job's pod that is on its way out not count; nothing to do when it is gone."""
    meta = pod.metadata
    if TRACKING not in meta.finalizers:
        return
    place = f"/metadata/finalizers/{meta.finalizers.index(TRACKING)}"
    steps = [
        {"op": "test", "path": "/metadata/uid", "value": meta.uid},
        {"op": "test", "path": place, "value": TRACKING},
        {"op": "remove", "path": place},
    ]
    try:
        await client.patch(resources.POD, meta.name, steps, meta.namespace, kind=kube_client.JSON_PATCH)
    except errors.NotFound:
        return
    except errors.Permanent as exc:
        # The list has changed since it was read, most often because the Job's controller was faster.
        log.debug("end_is_counted", pod=meta.key, error=str(exc))
