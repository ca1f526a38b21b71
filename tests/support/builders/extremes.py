"""Manifests at the limits of what the API server accepts, drawn from a seed: numbers, names, annotations, templates.

Everything here may be written by a tenant with rights in one namespace. What the API server refuses is no attack.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any, Final

from kgwe.model.units import amounts

if TYPE_CHECKING:
    import random

    Manifest = tuple[str, dict[str, Any]]
    """Path of the collection to create it in, and the object."""

#: nodes that pods are put on by name
NODES: Final = ("x0", "x1")

_MOST: Final = str(2**63 - 1)
_QUANTITIES: Final = (
    "0", "1", "3", "8", "64", "1n", "1u", "1m", "500m", "1e3", "1e18", "9e18", "12E", "8Ei", "7Ei", "1E", "0.1",
    "1.5Gi", _MOST, "9223372036854775808", "1e30", "123456789012345678901234567890", "1k", "4611686018427387904",
)  # fmt: skip
_COUNTS: Final = (
    "0",
    "1",
    "1",
    "2",
    "3",
    "8",
    "64",
    "1k",
    "1e3",
    "1e18",
    "12E",
    "8Ei",
    _MOST,
    "9223372036854775808",
    "1e30",
)
_NUMBERS: Final = (
    "", "0", "1", "2", "3", "8", "-1", "1000000", "1000001", "9" * 40, "1e9", "0x10", "٣", "1.5", " 2 ", "+2", "nan",
    "inf", "-inf", "1e308", "1e999", "5e-324", "true", "{}", "[]", "\u0001x", "∞",
)  # fmt: skip
_WORDS: Final = (
    "", "leaf", "spine", "node", "nvlink", "cluster", "rack", "None", "x" * 300, "日本", "🚀", "a/b", "..", "\n",
    "NVLinkRequired", "SameNUMA", "score", "random", "pack", "Hopper", "H100", "%s%n", "null",
)  # fmt: skip
_OWN: Final = "kgwe.nvidia.io/"


class Extremes:
    """Draws one manifest after the other."""

    def __init__(self, rng: random.Random, namespace: str) -> None:
        self._rng = rng
        self._namespace = namespace
        self._number = 0
        self._kinds = (
            self._workload, self._workload, self._workload, self._warp, self._gang, self._gang, self._pod, self._pod,
            self._bound_pod, self._job, self._job, self._run, self._budget, self._gang, self._workload, self._pod,
        )  # fmt: skip

    def next(self) -> list[Manifest]:
        """The objects of one manifest: a gang is several pods."""
        self._number += 1
        return self._rng.choice(self._kinds)()

    # --- drawing ----------------------------------------------------------------------------------------

    def _one(self, *of: Any) -> Any:
        return self._rng.choice(of)

    def _maybe(self, part: float = 0.3) -> bool:
        return self._rng.random() < part

    def _name(self) -> str:
        """Unique; as long or as odd as names may be."""
        stem = f"e{self._number}"
        letters = string.ascii_lowercase + string.digits
        return str(self._one(
            stem, f"{stem}-{'x' * (62 - len(stem))}", f"{stem}-{'y' * self._rng.randint(1, 250)}", f"{stem}--0",
            f"{stem}{''.join(self._rng.choices(letters, k=30))}",
        ))  # fmt: skip

    def _notes(self, keys: tuple[str, ...]) -> dict[str, str]:
        found = {key: self._one(*_NUMBERS, *_WORDS) for key in keys if self._maybe()}
        if self._maybe(0.1):
            found["big"] = "x" * self._rng.choice((1000, 100_000, 200_000))
        return found

    def _amounts(self, *, gpus: bool) -> dict[str, str]:
        found = {name: self._one(*_QUANTITIES) for name in ("cpu", "memory", "ephemeral-storage") if self._maybe(0.4)}
        counted = ["example.com/x"]
        if gpus:
            counted += [amounts.GPU, amounts.GPU, amounts.SHARED, "nvidia.com/mig-1g.10gb", "nvidia.com/mig-9g.999gb"]
        return found | {name: self._one(*_COUNTS) for name in counted if self._maybe(0.3)}

    def _containers(self, *, gpus: bool = True) -> list[dict[str, Any]]:
        count = self._one(1, 1, 2, 2, 3, 40)
        found = []
        for number in range(count):
            limits = self._amounts(gpus=gpus)
            resources = {"limits": limits, "requests": limits} if self._maybe(0.8) else {"limits": limits}
            found.append({"name": f"c{number}", "image": "example.com/x:1", "resources": resources})
        return found

    def _pod_spec(self, *, gpus: bool = True) -> dict[str, Any]:
        spec: dict[str, Any] = {"containers": self._containers(gpus=gpus), "restartPolicy": "Never"}
        if self._maybe():
            spec["initContainers"] = [
                each | {"name": f"i{number}"} | ({"restartPolicy": "Always"} if self._maybe() else {})
                for number, each in enumerate(self._containers(gpus=gpus)[:3])
            ]
        if self._maybe(0.2):
            spec["resources"] = {"requests": {self._one("cpu", "memory"): self._one(*_QUANTITIES)}}
        if self._maybe(0.2):
            spec["nodeSelector"] = {self._one("kubernetes.io/hostname", "zone"): self._one("x0", "nowhere", "")}
        if self._maybe(0.2):
            spec["affinity"] = self._affinity()
        if self._maybe(0.1):
            spec["topologySpreadConstraints"] = [
                {"maxSkew": 2**31 - 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
            ]
        if self._maybe(0.1):
            spec["activeDeadlineSeconds"] = 2**31 - 1
        if self._maybe(0.1):
            spec["schedulingGates"] = [{"name": self._one("kgwe.nvidia.io/plan", "example.com/other")}]
        return spec

    def _affinity(self) -> dict[str, Any]:
        line = {"key": self._one("kubernetes.io/hostname", "zone", "a/b"), "operator": self._one("In", "NotIn", "Gt")}
        line |= {"values": [self._one("1", "9" * 30, "-9", "x0", "nowhere")]}
        exists = {"key": "zone", "operator": self._one("Exists", "DoesNotExist")}
        terms = [{"matchExpressions": [self._one(line, exists)] * self._one(1, 50)} for _ in range(self._one(1, 1, 20))]
        if self._maybe(0.2):
            terms.append({})
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}

    # --- workloads --------------------------------------------------------------------------------------

    def _path(self, prefix: str, plural: str) -> str:
        return f"{prefix}/namespaces/{self._namespace}/{plural}"

    def _workload(self) -> list[Manifest]:
        body = {
            "apiVersion": "kgwe.nvidia.io/v1",
            "kind": "GPUWorkload",
            "metadata": {"name": self._name(), "annotations": self._notes((_OWN + "gang", _OWN + "gang-size"))},
            "spec": self._workload_spec(),
        }
        return [(self._path("/apis/kgwe.nvidia.io/v1", "gpuworkloads"), body)]

    def _workload_spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = {"gpuRequirements": self._requirements(), "podTemplate": self._template()}
        count = spec["gpuRequirements"].get("count")
        if count and self._maybe(0.4):
            spec["gpusPerPod"] = self._one(1, 2, 8, count, 63)
        if self._maybe():
            spec["distributedConfig"] = {
                "strategy": self._one("DataParallel", "FSDP", "Hybrid"),
                "worldSize": self._one(1, 2, 8, count or 1, 2**31 - 1, 2**62),
                "backend": self._one("NCCL", "Gloo", "Gloo", "MPI"),
            }
        choices: dict[str, tuple[Any, ...]] = {
            "priority": (0, 1, 1_000_000),
            "preemptible": (True, False),
            "workloadType": ("Training", "Inference", "FineTuning", "Visualization", "DataPreprocessing"),
            "framework": ("PyTorch", "JAX", "Triton", "TensorFlow", "MXNet"),
            "schedulingStrategy": ("score", "pack", "spread", "random", "a" * 63, "costOptimized", "leastLoaded"),
            "recoveryPolicy": ("ReplaceFailed", "RestartGang", "None"),
            "deviceMode": ("DRA", "DevicePlugin"),
            "expectedDurationSeconds": (1, 31_536_000),
            "retryPolicy": ({"maxRetries": 10, "backoffSeconds": 300}, {"maxRetries": 1, "backoffSeconds": 1}),
        }
        return spec | {key: self._one(*values) for key, values in choices.items() if self._maybe()}

    def _requirements(self) -> dict[str, Any]:
        kind = self._rng.random()
        if kind < 0.75:
            wants: dict[str, Any] = {"count": self._one(1, 1, 2, 8, 64, 72, 99_991, 100_000)}
        elif kind < 0.85:
            wants = {"share": self._one(0.5, 0.25, 1 / 3, 0.1)}
        else:
            wants = {"mig": {"profile": self._one("1g.10gb", "7g.80gb", "1g.5gb"), "count": self._one(1, 448)}}
        choices: dict[str, tuple[Any, ...]] = {
            "minMemoryGB": (1, 1024),
            "minBandwidthGBps": (5e-324, 1e308, 1e-9, 900),
            "gpuModel": ("H100", "x" * 128, "\u200b", "(", "*"),
            "architecture": ("Hopper", "Ampere", "Blackwell"),
        }
        wants |= {key: self._one(*values) for key, values in choices.items() if self._maybe(0.15)}
        if self._maybe():
            topology: dict[str, tuple[Any, ...]] = {
                "preference": ("None", "NVLinkOptimal", "NVLinkRequired", "SameNUMA", "SamePCIeSwitch"),
                "requiredLevel": ("leaf", "spine", "node", "nvlink", "cluster", "rack", "x" * 63),
                "preferredLevel": ("leaf", "spine", "node", "rack"),
                "segmentSize": (2, 8, 64),
                "segmentLevel": ("leaf", "node", "nvlink", "rack"),
                "minBandwidthGBps": (1e308, 5e-324),
            }
            wants["topology"] = {key: self._one(*values) for key, values in topology.items() if self._maybe(0.4)}
        return wants

    def _template(self) -> Any:
        """Free-form: the API server looks at nothing in it."""
        if self._maybe(0.5):
            return {"metadata": {"annotations": self._notes(_POD_NOTES)}, "spec": self._pod_spec(gpus=self._maybe())}
        deep: Any = {}
        for _ in range(40):
            deep = {"a": deep, "b": [deep]} if len(str(deep)) < 2000 else {"a": deep}
        container = {"name": "c", "image": "x"}
        return self._one(
            {},
            {"spec": None},
            {"spec": {}},
            {"spec": {"containers": []}},
            {"spec": {"containers": "all of them"}},
            {"spec": {"containers": [None, 7, "x"]}},
            {"spec": {"containers": [container | {"resources": "many"}]}},
            {"spec": {"containers": [container | {"resources": {"limits": {"cpu": [1]}}}]}},
            {"spec": {"containers": [container | {"resources": {"limits": {"cpu": 2**62, "memory": 1e300}}}]}},
            {"spec": {"containers": [container | {"resources": {"limits": {"memory": _MOST}}}] * 2}},
            {"spec": {"containers": [container], "initContainers": {"x": 1}}},
            {"spec": {"containers": [container], "affinity": {"nodeAffinity": self._word()}}},
            {"spec": {"containers": [container], "tolerations": [{"key": 5}]}},
            {"spec": {"containers": [container], "nodeSelector": ["x0"]}},
            {"spec": {"containers": [container], "schedulingGates": 3}},
            {"spec": {"containers": [container], "restartPolicy": self._word()}},
            {"spec": {"containers": [container], "nodeName": "x0"}},
            {"metadata": "none", "spec": {"containers": [container]}},
            {"metadata": {"labels": {"a": 1, "app": None}}, "spec": {"containers": [container]}},
            {"metadata": {"annotations": [1]}, "spec": {"containers": [container]}},
            {"metadata": {"ownerReferences": "x"}, "spec": {"containers": [container | {"env": "x"}]}},
            {"spec": {"containers": [container], "deep": deep}},
            {"spec": {"containers": [container | {"name": f"c{number}"} for number in range(64)]}},
        )

    def _word(self) -> str:
        return str(self._one(*_WORDS))

    def _warp(self) -> list[Manifest]:
        body = {
            "apiVersion": "gpu.warp.dev/v1alpha1",
            "kind": "GPUWorkload",
            "metadata": {"name": self._name()},
            "spec": {
                "modelName": self._one("m", "日本/モデル", "x" * 253, "a\nb", "{{}}", "-" * 63),
                "gpuCount": self._one(1, 2, 8, 8),
                "priority": self._one("low", "normal", "high"),
                "schedulingStrategy": self._one("leastLoaded", "random", "costOptimized"),
            },
        }
        return [(self._path("/apis/gpu.warp.dev/v1alpha1", "gpuworkloads"), body)]

    # --- pods -------------------------------------------------------------------------------------------

    def _pods(self) -> str:
        return self._path("/api/v1", "pods")

    def _meta(self, name: str) -> dict[str, Any]:
        meta: dict[str, Any] = {"name": name, "annotations": self._notes(_POD_NOTES)}
        meta["labels"] = {key: self._one("x", "1", "a" * 63, "", "0") for key in _POD_LABELS if self._maybe(0.1)}
        if self._maybe(0.1):
            kind = self._one("Job", "StatefulSet", "GPUWorkload", "Nobody", "PodGroup")
            owner = {"apiVersion": "v1", "kind": kind, "name": "x", "uid": f"{self._number}", "controller": True}
            meta["ownerReferences"] = [owner]
        return meta

    def _pod(self) -> list[Manifest]:
        return [(self._pods(), {"metadata": self._meta(f"e{self._number}"), "spec": self._pod_spec()})]

    def _bound_pod(self) -> list[Manifest]:
        """On a node without anybody having looked whether it fits."""
        spec = self._pod_spec() | {"nodeName": self._one(*NODES, "nowhere")}
        spec.pop("schedulingGates", None)
        return [(self._pods(), {"metadata": self._meta(f"e{self._number}"), "spec": spec})]

    def _gang(self) -> list[Manifest]:
        size = self._one(1, 2, 3)
        said = {_OWN + "gang": f"g{self._number}", _OWN + "gang-size": str(size)}
        said |= self._notes((_OWN + "gang-size", _OWN + "topology-required", _OWN + "topology-preferred"))
        said |= self._notes((_OWN + "segment", _OWN + "recovery", _OWN + "preemptible"))
        spec, same = self._pod_spec(), self._maybe(0.7)
        found = []
        for number in range(size):
            meta = self._meta(f"e{self._number}-{number}")
            meta["annotations"] |= said
            found.append((self._pods(), {"metadata": meta, "spec": spec if same else self._pod_spec()}))
        return found

    # --- what makes or covers pods ----------------------------------------------------------------------

    def _job(self) -> list[Manifest]:
        pods = self._one(1, 2, 3)
        said = {_OWN + "gang": "true"} if self._maybe(0.6) else {}
        spec = {
            "parallelism": pods,
            "completions": self._one(pods, 2**31 - 1, 100_000),
            "backoffLimit": self._one(0, 2**31 - 1),
            "completionMode": self._one("Indexed", "NonIndexed"),
            "suspend": self._maybe(0.2),
            "template": {"metadata": {"annotations": self._notes(_POD_NOTES) | said}, "spec": self._pod_spec()},
        }
        if spec["suspend"]:
            spec["parallelism"] = 100_000
        body = {"metadata": {"name": f"e{self._number}", "annotations": self._notes(_POD_NOTES)}, "spec": spec}
        return [(self._path("/apis/batch/v1", "jobs"), body)]

    def _run(self) -> list[Manifest]:
        """A Job that says it is ours."""
        labels = {"app.kubernetes.io/managed-by": "kgwe-scheduler", _OWN + "workload-uid": self._one("x", "0" * 36)}
        plan = self._one(
            "x0=ff", "x0=ff;" * 60 + "x0=1", "2:x[0-99999999]=ff", "2z:eJz", "x0=ffffffffffffffff", "=", ""
        )
        said = {_OWN + "plan": plan, _OWN + "plan-details": self._one("{}", "null", '{"score":1e999}', "[")}
        container = {"name": "c", "image": "x", "resources": {"limits": self._amounts(gpus=True)}}
        spec = {
            "suspend": True,
            "parallelism": 2**31 - 1,
            "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
        }
        body = {"metadata": {"name": f"e{self._number}", "labels": labels, "annotations": said}, "spec": spec}
        return [(self._path("/apis/batch/v1", "jobs"), body)]

    def _budget(self) -> list[Manifest]:
        selector = self._one(
            {}, {"matchLabels": {"a": "b"}}, {"matchExpressions": [{"key": "x", "operator": "Exists"}]}
        )
        limit = self._one({"minAvailable": 2**31 - 1}, {"maxUnavailable": "100%"}, {"minAvailable": "100%"}, {})
        body = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": f"e{self._number}"},
            "spec": {"selector": selector, **limit},
        }
        return [(self._path("/apis/policy/v1", "poddisruptionbudgets"), body)]


_OWN_WORDS: Final = (
    "topology-preference", "min-bandwidth-gbps", "min-memory-gb", "gpu-model", "gpu-architecture", "strategy",
    "gpu-share", "preemptible", "recovery", "topology-required", "segment", "seat", "cards", "slices",
    "simulated-duration", "spot-policy", "hardware",
)  # fmt: skip
_POD_NOTES: Final = (
    *(_OWN + word for word in _OWN_WORDS),
    "scheduling.volcano.sh/group-name", "scheduling.k8s.io/group-name", "kai.scheduler/segment-size",
    "kai.scheduler/segment-topology-required-placement", "kueue.x-k8s.io/podset-slice-size",
    "kueue.x-k8s.io/podset-slice-required-topology-constraints", "kueue.x-k8s.io/podset-required-topology",
    "kueue.x-k8s.io/pod-group-total-count", "topology.scheduler/gpu-count", "topology.scheduler/network-bandwidth",
    "topology.scheduler/placement-strategy", "leaderworkerset.sigs.k8s.io/size", "pod-group-name",
    "batch.kubernetes.io/job-completion-index",
)  # fmt: skip
_POD_LABELS: Final = (
    "scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io/name", "kueue.x-k8s.io/pod-group-name",
    "pod-group.scheduling.sigs.k8s.io/min-available", "leaderworkerset.sigs.k8s.io/name", "kai.scheduler/queue",
    "leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/worker-index", "runai/queue",
    "jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name", "ray.io/cluster", _OWN + "seated",
    "kgwe.nvidia.io/workload-uid", "volcano.sh/task-index", "batch.kubernetes.io/job-name",
)  # fmt: skip
