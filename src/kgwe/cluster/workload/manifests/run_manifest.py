"""The Job that runs a workload (for inference the Deployment), the Service of its ranks, and its claim template.

The plan is stored once, seat by seat, in an annotation of the Job or Deployment. A restarted scheduler rebuilds every
reservation from it. A single pod is pinned by required node affinity in its template: kube-scheduler then considers
that node only, still runs all its checks, and binds the pod. Pods of a gang share one template, so it has a scheduling
gate instead; each pod is pinned when its gate is removed (`apps/scheduler/pods/pinner.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kgwe.cluster.workload import effective_request, metadata_keys, placement_annotations, plan_details, plan_text
from kgwe.cluster.workload.manifests import dra_claims, rendezvous, run_metadata
from kgwe.cluster.workload.manifests.pod_template import (
    copy_without_nulls,
    requested_amounts,
    requests_gpus_itself,
    set_gpus,
)
from kgwe.kube.api import resources
from kgwe.kube.translate.nodes import Cards

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.cluster.workload.manifests.dra_claims import Naming
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api.resources import Resource
    from kgwe.model.units.amounts import Amounts
    from kgwe.placement.planning.plan import Plan

# Kubernetes' own default for pods that restart.
_RESTARTS = 6
# How often a Job replaces a pod by itself; the scheduler acts after fewer rejections (`rejected_pods`).
_REJECTIONS = 6
# Exit code of a container that ended by SIGTERM: its pod was deleted.
_TERMINATED = 143


def _without_names(_node: str) -> Cards:
    return Cards({}, {})


def build_run(
    workload: Workload, template: dict[str, Any], plan: Plan, run_id: str = "", names: Naming = _without_names
) -> dict[str, Any]:
    """The Job or Deployment that runs the workload as planned. Every Deployment needs a `run_id` of its own."""
    template = copy_without_nulls(template)
    pods = len(plan.seats)
    spec = template["spec"]
    if plan.gpus_per_pod and not requests_gpus_itself(workload):
        # The plan may have divided the GPUs among pods.
        set_gpus(spec["containers"][0], workload, plan.gpus_per_pod)
    wanted = requested_amounts(spec)
    if workload.claims:
        dra_claims.convert_to_claims(spec, dra_claims.template_name(run_metadata.job_name(workload), plan.seats, names))
    if pods == 1:
        placement_annotations.pin_to_node(spec, plan.seats[0].node)
        said = template.setdefault("metadata", {})
        said["annotations"] = (said.get("annotations") or {}) | placement_annotations.device_annotations(plan.seats[0])
    else:
        spec["schedulingGates"] = [*(spec.get("schedulingGates") or ()), {"name": placement_annotations.GATE}]
    if pods > 1 and not workload.serves:
        rendezvous.add_environment(
            spec,
            run_metadata.job_name(workload),
            pods=pods,
            gpus=plan.gpus_per_pod,
            ranks=workload.world_size,
            framework=workload.framework,
        )
    meta = _run_meta(workload, wanted)
    meta["annotations"] |= {
        placement_annotations.PLAN_ANNOTATION: placement_annotations.encode(plan.seats, plan_text.MOST_BYTES_AT_START),
        metadata_keys.DETAILS_ANNOTATION: plan_details.encode_details(plan_details.describe_plan(plan)),
    }
    if not workload.serves:
        return {"metadata": meta, "spec": _job_spec(workload, template, pods)}
    meta["labels"][metadata_keys.RUN_LABEL] = template["metadata"]["labels"][metadata_keys.RUN_LABEL] = run_id
    return {"metadata": meta, "spec": _deployment_spec(workload, template, pods)}


def build_queued_run(workload: Workload, template: dict[str, Any], pods: int) -> dict[str, Any]:
    """The suspended Job of a workload that Kueue admits. It has no plan yet, and its pods wait behind the gate."""
    template = copy_without_nulls(template)
    spec = template["spec"]
    wanted = requested_amounts(spec)
    spec["schedulingGates"] = [*(spec.get("schedulingGates") or ()), {"name": placement_annotations.GATE}]
    if pods > 1:
        rendezvous.add_environment(
            spec,
            run_metadata.job_name(workload),
            pods=pods,
            gpus=workload.per_pod,
            ranks=workload.world_size,
            framework=workload.framework,
        )
    meta = _run_meta(workload, wanted)
    meta["labels"][metadata_keys.QUEUE_LABEL] = workload.queue
    return {"metadata": meta, "spec": _job_spec(workload, template, pods) | {"suspend": True}}


def _run_meta(workload: Workload, wanted: Amounts) -> dict[str, Any]:
    """The metadata of a run without its plan."""
    return {
        "name": run_metadata.job_name(workload),
        "namespace": workload.meta.namespace,
        "labels": run_metadata.build_labels(workload),
        "annotations": {
            metadata_keys.AMOUNTS_ANNOTATION: plan_details.encode_amounts(wanted),
            metadata_keys.GENERATION_ANNOTATION: str(workload.meta.generation),
            metadata_keys.SPEC_HASH_ANNOTATION: workload.hash_spec(),
            "gpu.warp.dev/created-by": metadata_keys.CONTROLLER_NAME,
        }
        | effective_request.encode_decision(workload),
        "ownerReferences": [run_metadata.owner_reference(workload)],
    }


def _job_spec(workload: Workload, template: dict[str, Any], pods: int) -> dict[str, Any]:
    restarts = template["spec"]["restartPolicy"] != "Never"
    spec: dict[str, Any] = {
        # A pod that restarts its containers itself counts each restart against this limit. Of the others only those
        # count that never started: a node may reject all its pods of the Job at once.
        "backoffLimit": _RESTARTS if restarts else _REJECTIONS * pods,
        "completions": pods,
        "parallelism": pods,
        "template": template,
    }
    if pods > 1:
        spec["completionMode"] = "Indexed"
    if workload.deadline_s is not None:
        spec["activeDeadlineSeconds"] = workload.deadline_s
    if not restarts:
        # A container that fails by itself fails the Job. A pod that is evicted, that its kubelet rejects before any
        # container starts, or that is deleted (exit code 143) is replaced.
        ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        failed = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0, _TERMINATED]}}
        spec["podFailurePolicy"] = {"rules": [ignore, failed]}
    return spec


def _deployment_spec(workload: Workload, template: dict[str, Any], pods: int) -> dict[str, Any]:
    template["spec"]["restartPolicy"] = "Always"
    return {
        "replicas": pods,
        "selector": {
            "matchLabels": {
                metadata_keys.UID_LABEL: workload.meta.uid,
                metadata_keys.RUN_LABEL: template["metadata"]["labels"][metadata_keys.RUN_LABEL],
            }
        },
        # A second pod beside the first would need GPUs that were not planned.
        "strategy": {"type": "Recreate"},
        "template": template,
    }


def build_companions(workload: Workload, plan: Plan, names: Naming) -> Iterator[tuple[Resource[Any], dict[str, Any]]]:
    """Objects that must exist before the pods; an existing object of that name is reused."""
    if len(plan.seats) > 1 and not workload.serves:
        yield resources.SERVICE, build_service(workload)
    if workload.claims:
        body = dra_claims.build_template(run_metadata.job_name(workload), plan.seats, names)
        body["metadata"] |= {
            "labels": run_metadata.build_labels(workload),
            "ownerReferences": [run_metadata.owner_reference(workload)],
        }
        yield resources.RESOURCE_CLAIM_TEMPLATE, body


def build_service(workload: Workload) -> dict[str, Any]:
    """The headless Service by which the ranks of a gang find rank 0, or each other, before they are ready."""
    return {
        "metadata": {
            "name": rendezvous.service_name(run_metadata.job_name(workload)),
            "namespace": workload.meta.namespace,
            "labels": run_metadata.build_labels(workload),
            "ownerReferences": [run_metadata.owner_reference(workload)],
        },
        "spec": rendezvous.service_spec({metadata_keys.UID_LABEL: workload.meta.uid}, names_all=workload.names_all),
    }
