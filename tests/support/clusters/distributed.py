"""Where the pods of a distributed workload are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kgwe.cluster.workload import metadata_keys, placement_annotations

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed


def pods_of(bed: Bed, workload: Any) -> list[Any]:
    """Pods of the Job or Deployment that is there now, by rank."""
    uid = workload.metadata.uid
    mine = [pod for pod in bed.pods.store.values() if pod.metadata.labels.get(metadata_keys.UID_LABEL) == uid]
    running = {job.metadata.uid for job in bed.jobs_of(workload) if job.metadata.deletionTimestamp is None}
    made_by = {pod.metadata.uid: pod.metadata.controller for pod in mine}
    mine = [pod for pod in mine if (by := made_by[pod.metadata.uid]) and (by.kind == "ReplicaSet" or by.uid in running)]
    return sorted(
        mine,
        key=lambda pod: (pod.metadata.annotations.get(placement_annotations.INDEX_ANNOTATION, ""), pod.metadata.name),
    )


def nodes_of(bed: Bed, workload: Any) -> list[str]:
    return [pod.spec.nodeName for pod in pods_of(bed, workload)]
