"""What a workload asks of the planner, read from its spec and its pod template."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from kgwe import errors
from kgwe.cluster.workload.manifests.pod_template import requests_gpus_itself
from kgwe.kube.api import core
from kgwe.kube.translate import podrequest, podspec
from kgwe.kube.translate.node_builder import CLAIMS_LABEL
from kgwe.model.devices import shares
from kgwe.model.units import amounts
from kgwe.placement.fleet.constraints import Constraints
from kgwe.placement.fleet.node import Gpus, Request, share_milli
from kgwe.placement.fleet.taints import Toleration
from kgwe.placement.planning.ask import Ask

if TYPE_CHECKING:
    from kgwe.cluster.workload.workload import Workload


def build_ask(workload: Workload, template: dict[str, Any], avoid: frozenset[str]) -> Ask:
    """What the workload asks for; Permanent if its template is invalid."""
    try:
        spec = msgspec.convert(template["spec"], core.PodSpec, strict=False)
        affinity = podspec.required_affinity(spec.affinity)
    except (msgspec.ValidationError, ValueError) as exc:
        raise errors.Permanent(str(exc)) from exc
    selector, tolerations = tuple(sorted(spec.nodeSelector.items())), podspec.read_tolerations(spec.tolerations)
    if workload.claims:
        selector = (*selector, (CLAIMS_LABEL, "true"))
        tolerations = (*tolerations, Toleration(CLAIMS_LABEL, "Exists"))
    wanted = podspec.sum_requests(spec)
    workload = _match_template(workload, wanted)
    needs = workload.needs
    return Ask(
        owner=workload.meta.uid,
        request=Request(
            _read_gpus(workload),
            cpu_milli=wanted.get(amounts.CPU, 0),
            memory_bytes=wanted.get(amounts.MEMORY, 0),
            preference=needs.preference,
            min_bandwidth_gbps=needs.min_bandwidth_gbps,
            min_memory_gb=needs.min_memory_gb,
            model=needs.gpu_model,
            architecture=needs.architecture,
            constraints=Constraints(selector, affinity, tolerations, avoid),
            spot=podrequest.spot_policy(
                template.get("metadata", {}).get("annotations", {}),
                policy=needs.spot_policy,
                preemptible=workload.preemptible or workload.spot_terms is not None,
                strategy=workload.strategy,
            ),
        ),
        amounts=wanted,
        pods=workload.pods,
        divisible=workload.divisible and workload.pods == 1 and not requests_gpus_itself(workload),
        ranks=workload.world_size,
        nearness=workload.nearness,
        strategy=workload.strategy,
        priority=workload.priority,
        preemptible=workload.preemptible,
        since=workload.meta.creationTimestamp or "",
        namespace=workload.meta.namespace,
        name=workload.meta.name,
        expected_s=workload.expected_s,
        serves=workload.serves,
        service=workload.object_uid if workload.is_scalable else "",
    )


def _read_gpus(workload: Workload) -> Gpus:
    """The GPUs of each pod."""
    if workload.resource == amounts.GPU:
        return Gpus(count=workload.per_pod)
    if workload.resource == amounts.SHARED:
        try:
            return Gpus(milli=share_milli(shares.shares_of_fraction(workload.share)))
        except ValueError as exc:
            raise errors.Permanent(f"gpuRequirements.share: {exc}") from exc
    return Gpus(profile=workload.resource.removeprefix(amounts.MIG_PREFIX), slices=workload.per_pod)


def _match_template(workload: Workload, wanted: dict[str, int]) -> Workload:
    """The workload, divided into pods as its template says; Permanent if the template contradicts its spec.

    A template may request a part of the GPUs: then there are as many pods as it takes.
    """
    found = {name: count for name, count in wanted.items() if amounts.is_gpu(name)}
    per_pod = found.get(amounts.GPU, 0)
    if workload.divisible and list(found) == [amounts.GPU] and per_pod and workload.per_pod % per_pod == 0:
        pods = workload.per_pod // per_pod
        if workload.world_size % pods:
            raise errors.Permanent(
                f"its containers ask for {per_pod} of {workload.per_pod} GPUs, which makes {pods} pods, over which"
                f" distributedConfig.worldSize {workload.world_size} cannot be shared out equally"
            )
        return replace(workload, per_pod=per_pod, pods=pods)
    if found != {workload.resource: workload.per_pod}:
        asked = ", ".join(f"{count} {name}" for name, count in sorted(found.items()))
        raise errors.Permanent(
            f"its containers ask for {asked}, gpuRequirements for {workload.per_pod} {workload.resource} per pod;"
            " leave the GPUs out of the template or make both agree"
        )
    return workload
