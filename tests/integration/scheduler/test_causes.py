"""Waiting workloads, each for a different cause: a reader of the message must know what is wrong and what to do.

`KGWE_CAUSES_FILE=causes.md pytest …` writes all messages and explanations to a file, without the manifests.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.support.clusters.bed import kgwe
from tests.support.clusters.pods import gang

from kgwe.apps.whatif import explain, subject, words
from kgwe.cluster import offline
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed
    from tests.support.clusters.pods import Live

LEAF, SPINE = "fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1"
H100, L40S = "NVIDIA-H100-80GB-HBM3", "NVIDIA-L40S"
#: words that make a message a riddle, plurals of one, raw bytes and numbers with a useless decimal
UNCLEAR = re.compile(
    r"\b(whoever|nobody|somebody|anew|in vain|is told|says?|who|whom|cards?)\b"
    r"|\b1 (GPUs|pods|slices|cores)\b"
    r"|\d{9,}|\d\.0\b(?!/)"
)


class Cause(NamedTuple):
    """One workload, and what the reader must learn."""

    name: str
    spec: dict[str, Any]
    reason: str
    problem: str
    """Part of the condition's message."""
    help: str
    """Part of the explanation: what to do."""


def gpus(count: int = 1, **requirements: Any) -> dict[str, Any]:
    return {"gpuRequirements": {"count": count, **requirements}}


def pod(resources_: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": "example.com/train:1"}
    if resources_:
        container["resources"] = {"requests": resources_}
    return {"podTemplate": {"spec": {"containers": [container], **spec}}}


ON_H100: dict[str, Any] = {"gpuModel": "H100"}
CAUSES = (
    Cause("no-free-node", gpus(8, **ON_H100), "InsufficientGPU", "insufficient GPUs", "holds 6 GPUs (declared end: "),
    Cause(
        "16-gpus-per-pod",
        {**gpus(32), "gpusPerPod": 16},
        "TooLarge",
        "Each pod asks for 16 GPUs; the largest node has 8. Set gpusPerPod to 8 or less.",
        "Will not start by waiting. Set gpusPerPod to 8 or less.",
    ),
    Cause("typo-in-model", gpus(gpuModel="H10O"), "NoMatchingNode", "did you mean H100", "Set gpuModel to H100"),
    Cause("unknown-model", gpus(gpuModel="MI300X"), "NoMatchingNode", "No GPU has model MI300X", "models here: "),
    Cause(
        "gpu-memory",
        gpus(minMemoryGB=200),
        "NoMatchingNode",
        "Each GPU needs 200 GB of memory (minMemoryGB); the largest",
        "Set minMemoryGB to",
    ),
    Cause("cpu-of-a-pod", gpus() | pod({"cpu": "128"}), "TooLarge", "requests 128 cores", "Request 64 cores or less"),
    Cause(
        "memory-of-a-pod",
        gpus() | pod({"memory": "2Ti"}),
        "TooLarge",
        "requests 2048 GiB",
        "Request 512Gi or less",
    ),
    Cause(
        "cpu-in-use",
        gpus(**ON_H100) | pod({"cpu": "40"}),
        "InsufficientResources",
        "insufficient CPU",
        "holds 30 cores and 6 GPUs (declared end: ",
    ),
    Cause(
        "tainted-node",
        gpus() | pod(nodeSelector={"pool": "infra"}),
        "NoMatchingNode",
        "untolerated taint dedicated=infra:NoSchedule",
        "Add a toleration",
    ),
    Cause(
        "no-such-label",
        gpus() | pod(nodeSelector={"pool": "mars"}),
        "NoMatchingNode",
        "No GPU node has label pool=mars",
        "Change nodeSelector",
    ),
    Cause(
        "cordoned-node",
        gpus() | pod(nodeSelector={"pool": "old"}),
        "NoMatchingNode",
        "1 cordoned. The only matching node is cordoned (old-1)",
        "kubectl uncordon old-1",
    ),
    Cause(
        "leaf-too-small",
        {**gpus(24, topology={"requiredLevel": "leaf"}, **ON_H100), "gpusPerPod": 8},
        "TooLarge",
        "leaves available for 3 pods of 8 GPUs",
        "Will not start by waiting",
    ),
    Cause(
        "gang-without-room",
        {**gpus(16, **ON_H100), "gpusPerPod": 8},
        "InsufficientGPU",
        "nodes available for 2 pods of 8 GPUs",
        "Nearest",
    ),
    Cause(
        "gpu-share",
        {"gpuRequirements": {"share": 0.5}},
        "NotOffered",
        "No node offers shares of 1/2 GPU",
        "Set share to 0.25",
    ),
    Cause(
        "mig-slice",
        {"gpuRequirements": {"mig": {"profile": "3g.40gb", "count": 1}}},
        "NotOffered",
        "No GPU has a 3g.40gb slice",
        "MIGStrategy",
    ),
    Cause(
        "mig-profile",
        {"gpuRequirements": {"mig": {"profile": "7g.141gb", "count": 1}}},
        "NotOffered",
        "No GPU model here has MIG profile 7g.141gb (nearest profiles: 7g.80gb, ",
        "Set mig.profile to one of these, such as 7g.80gb",
    ),
    Cause(
        "400-gpus",
        gpus(400, **ON_H100),
        "TooLarge",
        "400 GPUs are requested; nodes with GPU model H100 have 32, ",
        "Will not start by waiting",
    ),
    Cause(
        "two-containers",
        gpus()
        | {
            "podTemplate": {
                "spec": {
                    "containers": [
                        {"name": name, "image": "example.com/train:1", "resources": {"requests": {"cpu": "40"}}}
                        for name in ("main", "loader")
                    ]
                }
            }
        },
        "TooLarge",
        "Each pod requests 80 cores (all containers together); the largest node that matches has 64 cores.",
        "Request 64 cores or less",
    ),
    Cause(
        "resource-claim",
        gpus() | pod(resourceClaims=[{"name": "net", "resourceClaimName": "fast-nic"}]),
        "ResourceClaimNotFound",
        "ResourceClaim fast-nic does not exist in namespace default. Create it, or change resourceClaims",
        "ResourceClaim fast-nic does not exist",
    ),
    Cause(
        "high-priority",
        {**gpus(8, **ON_H100), "priority": 1_000_000},
        "InsufficientGPU",
        "insufficient GPUs",
        "spec.priority 1000000 counts as 10000: a priority above the limit",
    ),
    Cause(
        "spot-required",
        {**gpus(), "spotPolicy": "Require"},
        "NoMatchingNode",
        "Only spot nodes are allowed",
        "Set spotPolicy to Allow",
    ),
    Cause(
        "gpu-bandwidth",
        {**gpus(4, gpuModel="L40S", topology={"minBandwidthGBps": 500}), "gpusPerPod": 4},
        "TopologyNotMet",
        "are connected with at least 500 GB/s",
        "minBandwidthGBps",
    ),
    Cause(
        "nvlink",
        gpus(4, gpuModel="L40S", topology={"preference": "NVLinkRequired", "minBandwidthGBps": 600}),
        "TopologyNotMet",
        "are connected by NVLink with at least 600 GB/s",
        "Set topology.preference to NVLinkOptimal and remove topology.minBandwidthGBps",
    ),
    Cause(
        "priority-class",
        gpus() | pod(priorityClassName="urgent"),
        "PriorityClassNotFound",
        "PriorityClass urgent does not exist",
        "Create it, or change priorityClassName",
    ),
    Cause(
        "unknown-level",
        {**gpus(16, topology={"requiredLevel": "row"}), "gpusPerPod": 8},
        "UnknownTopologyLevel",
        "row",
        "leaf",
    ),
)


#: pods that are created at their place and do not start there
PLACED: dict[str, dict[str, Any]] = {
    "other-scheduler": pod(schedulerName="volcano"),
    "service-account": pod(serviceAccountName="trainer"),
    "pod-affinity": pod(
        affinity={
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "database"}}}
                ]
            }
        }
    ),
    "extended-resource": {
        "podTemplate": {
            "spec": {
                "containers": [
                    {
                        "name": "main",
                        "image": "example.com/train:1",
                        "resources": {"limits": {"example.com/nic": "1"}, "requests": {"example.com/nic": "1"}},
                    }
                ]
            }
        }
    },
}


async def fleet(bed: Bed) -> None:
    """Two leaves of two H100 nodes, two nodes with L40S, and one each that is tainted, cordoned and divided."""
    for number in range(1, 5):
        network = {LEAF: f"leaf-{(number + 1) // 2}", SPINE: "spine-1"}
        await bed.node(
            f"h{number}", labels=network | {"nvidia.com/gpu.product": H100, "nvidia.com/gpu.memory": "81559"}
        )
    slow = {"nvidia.com/gpu.product": L40S, "nvidia.com/gpu.memory": "46068", LEAF: "leaf-3", SPINE: "spine-1"}
    await bed.node("l1", 4, labels=slow)
    await bed.node("infra-1", labels={"pool": "infra", LEAF: "leaf-3", SPINE: "spine-1"})
    await bed.node("old-1", labels={"pool": "old", LEAF: "leaf-3", SPINE: "spine-1"})
    shared = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    await bed.node(
        "shared-1", 0, labels=shared | {LEAF: "leaf-3", SPINE: "spine-1"}, more={"nvidia.com/gpu.shared": "32"}
    )
    taint = {"key": "dedicated", "value": "infra", "effect": "NoSchedule"}
    await bed.until(lambda: not any(node.spec.taints for node in bed.nodes.store.values()))
    await bed.client.patch(resources.NODE, "infra-1", {"spec": {"taints": [taint]}})
    await bed.client.patch(resources.NODE, "old-1", {"spec": {"unschedulable": True}})


async def fill(bed: Bed) -> None:
    for number in range(1, 5):
        spec = pod({"cpu": "30"}, nodeSelector={"kubernetes.io/hostname": f"h{number}"})
        body = kgwe(f"boss-{number}", 6, priority=5000, expectedDurationSeconds=7200, **spec)
        body["spec"]["podTemplate"]["metadata"] = {"annotations": {"kgwe.nvidia.io/simulated-duration": "2h"}}
        await bed.until_phase(await bed.submit(body), "Running")


def scheduled(bed: Bed, workload: Any) -> Any:
    found = bed.now(workload)
    return next((each for each in found.status.conditions if each.type == "Scheduled"), None) if found else None


def is_refused(bed: Bed, workload: Any) -> bool:
    condition = scheduled(bed, workload)
    return condition is not None and condition.status == "False"


def mentions(bed: Bed, workload: Any, word: str) -> bool:
    found = bed.now(workload)
    return found is not None and word in found.status.message


@pytest.mark.slow
async def test_every_cause_is_named_with_what_to_do(live: Live) -> None:
    bed = live.bed
    await fleet(bed)
    await live.scheduler(placement_timeout_seconds="2", unscheduled_timeout_seconds="2")
    await fill(bed)
    quota = {"metadata": {"name": "limited"}, "spec": {"hard": {"requests.nvidia.com/gpu": "0"}}}
    await bed.client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": "limited"}})
    await bed.client.request("POST", "/api/v1/namespaces/limited/resourcequotas", body=quota)
    made = {cause.name: await bed.submit(kgwe(cause.name, **cause.spec)) for cause in CAUSES}
    extra = {
        "quota-of-namespace": await bed.submit(kgwe("quota-of-namespace", **gpus()), "limited"),
        "claim-missing": await bed.submit(
            kgwe(
                "claim-missing",
                **gpus(),
                **pod(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "dataset"}}]),
            )
        ),
    }
    for name, spec in PLACED.items():
        extra[name] = await bed.submit(kgwe(name, **gpus(), **spec))
    await bed.submit(kgwe("suspended", suspend=True, **gpus()))
    await live.pod("big-pod", 16)
    for number in range(2):
        await live.pod(f"trainer-{number}", 1, annotations=gang("trainer", 4))
    texts: dict[str, tuple[str, str]] = {}
    for workload in made.values():
        await bed.until(functools.partial(is_refused, bed, workload))
    for name, word in (
        ("quota-of-namespace", "exceeded quota"),
        ("claim-missing", "Create it"),
        ("other-scheduler", "volcano"),
        ("service-account", "not found"),
        ("pod-affinity", "podAffinity"),
        ("extended-resource", "example.com/nic"),
    ):
        await bed.until(functools.partial(mentions, bed, extra[name], word))
    seen = await offline.read(bed.client)
    for name, workload in (made | extra).items():
        condition = scheduled(bed, workload)
        found = explain.explain(seen, subject.find(seen, name, workload.metadata.namespace))
        texts[name] = f"{condition.reason}: {bed.now(workload).status.message}", words.text(found)
    for name, cause in (("trainer-0", "incomplete-gang"), ("big-pod", "big-pod"), ("suspended", "suspended")):
        told = explain.explain(seen, subject.find(seen, name, "default"))
        texts[cause] = told.summary, words.text(told)
    texts["labels-of-no-node"] = await miss_labels(bed)
    report(texts)
    check(texts)


async def miss_labels(bed: Bed) -> tuple[str, str]:
    """A SchedulerConfig names labels that no node has: the message of a workload that must stay in one leaf."""
    levels = [{"name": "leaf", "labels": ["example.com/rack"]}]
    config = {
        "apiVersion": "kgwe.nvidia.io/v1",
        "kind": "SchedulerConfig",
        "metadata": {"name": "default"},
        "spec": {"topology": {"levels": levels}},
    }
    await bed.client.create(resources.SCHEDULER_CONFIG, config)
    requirements = gpus(16, topology={"requiredLevel": "leaf"}, **ON_H100)
    workload = await bed.submit(kgwe("labels-of-no-node", **requirements, gpusPerPod=8))
    await bed.until(functools.partial(mentions, bed, workload, "example.com/rack"))
    seen = await offline.read(bed.client)
    told = explain.explain(seen, subject.find(seen, "labels-of-no-node", "default"))
    await bed.client.delete(resources.SCHEDULER_CONFIG, "default")
    return f"{scheduled(bed, workload).reason}: {bed.now(workload).status.message}", words.text(told)


def check(texts: dict[str, tuple[str, str]]) -> None:
    for cause in CAUSES:
        condition, explanation = texts[cause.name]
        assert condition.startswith(f"{cause.reason}: "), condition
        assert cause.problem in condition, condition
        assert cause.help in explanation, explanation
    for name, both in texts.items():
        for text in both:
            assert not UNCLEAR.search(text), (name, UNCLEAR.search(text), text)
            assert len(text) < 4096
        assert "would start now" not in both[0]
    for name, problem in (
        ("quota-of-namespace", "Job created 0 of 1 pod: exceeded quota: "),
        ("quota-of-namespace", ". Raise ResourceQuota limited, ask for less, or wait until other workloads end"),
        ("service-account", 'serviceaccount "trainer" not found. Create ServiceAccount trainer, or change'),
        ("claim-missing", "PersistentVolumeClaim dataset does not exist in namespace default. Create it, or "),
        (
            "other-scheduler",
            "o scheduler named volcano has picked up its pod. Remove schedulerName from the pod template",
        ),
        ("pod-affinity", "didn't match pod affinity rules. Change podAffinity, or start the pods that it names"),
        ("extended-resource", "o node offers example.com/nic, which the pod requests. Remove the request, or install"),
        ("big-pod", "Each pod asks for 16 GPUs; the largest node has 8"),
        ("suspended", "uspended"),
        ("labels-of-no-node", "so every node counts as its own leaf. Correct the label in the SchedulerConfig"),
        ("incomplete-gang", "2 of 4 pods exist (kgwe.nvidia.io/gang-size: 4). Create the 2 missing pods, or lower "),
    ):
        headline = texts[name][1].splitlines()[0]
        assert problem in texts[name][0], texts[name]
        assert problem in headline, texts[name]


def report(texts: dict[str, tuple[str, str]]) -> None:
    """Write all texts for a reader who does not know the product."""
    path = os.environ.get("KGWE_CAUSES_FILE")
    if path:
        parts = [
            f"## {number}. {name}\n\nCondition:\n\n    {condition}\n\nkgwe explain:\n\n```\n{explanation}```\n"
            for number, (name, (condition, explanation)) in enumerate(texts.items(), 1)
        ]
        Path(path).write_text("\n".join(parts))
