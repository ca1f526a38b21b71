"""Which changes of a pod matter: most changes concern its status only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.cluster.workload import metadata_keys

if TYPE_CHECKING:
    from kgwe.kube.api import core


def is_booked_alike(old: core.Pod | None, new: core.Pod) -> bool:
    """Whether nothing changed that the booking of a bound pod depends on."""
    return old is not None and old.spec == new.spec and old.metadata.is_like(new.metadata)


def is_relevant(old: core.Pod | None, new: core.Pod) -> bool:
    """Whether a change of a pod can change its workload's status."""
    if old is None:
        return True
    return (
        old.spec.nodeName != new.spec.nodeName
        or old.status.phase != new.status.phase
        or old.metadata.deletionTimestamp != new.metadata.deletionTimestamp
        or _is_unschedulable(old) != _is_unschedulable(new)
        or _serves_otherwise(old, new)
    )


def _serves_otherwise(old: core.Pod, new: core.Pod) -> bool:
    """Whether a pod of a Deployment has become ready, or is ready no more."""
    return metadata_keys.RUN_LABEL in new.metadata.labels and is_ready(old) != is_ready(new)


def is_ready(pod: core.Pod) -> bool:
    """Whether the pod runs, is ready and is not being deleted."""
    if pod.metadata.deletionTimestamp is not None or pod.status.phase != "Running":
        return False
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)


def left_unstarted(last: core.Pod) -> bool:
    """Whether a pod that is gone was bound and not deleted, and had not started when it was last seen."""
    return bool(last.spec.nodeName) and last.metadata.deletionTimestamp is None and last.status.phase != "Running"


def _is_unschedulable(pod: core.Pod) -> bool:
    return any(c.type == "PodScheduled" and c.reason == "Unschedulable" for c in pod.status.conditions)
