"""Pods with GPUs: the fields that the optimizer reads, and the facts about them."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.meta import Condition, ObjectMeta  # noqa: TC001 - read by msgspec when it decodes
from kgwe.model.units import amounts, quantity
from kgwe.model.usage.fingerprint import Fingerprint, Shape, make_fingerprint
from kgwe.model.usage.window import PodKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: written by the scheduler on the pods of a GPUWorkload
_WORKLOAD_LABEL: Final = "kgwe.nvidia.io/workload"
#: written by Deployments: the suffix of their ReplicaSets
_TEMPLATE_LABEL: Final = "pod-template-hash"
_SHARE_ANNOTATION: Final = "kgwe.nvidia.io/gpu-share"
#: the user on whose behalf a workload runs, where a portal writes it
USER_LABEL: Final = "kgwe.nvidia.io/user"
_ENDED: Final = ("Succeeded", "Failed")
_MILLI: Final = 1000
_OOM: Final = "OOMKilled"
# Frameworks and drivers name the GPU when its memory was not enough; the kernel does not.
_GPU_MEMORY: Final = re.compile(
    r"out of (gpu|cuda|hip|device) memory|(gpu|cuda|hip|torch|device)\b.{0,200}out of memory"
)


class _Slim(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    pass


class Variable(_Slim, frozen=True):
    name: str
    value: str = ""


class Port(_Slim, frozen=True):
    container_port: int = 0
    name: str = ""


class Claim(_Slim, frozen=True):
    name: str


class Needs(_Slim, frozen=True):
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    claims: tuple[Claim, ...] = ()


class Container(_Slim, frozen=True):
    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    ports: tuple[Port, ...] = ()
    resources: Needs = Needs()
    readiness_probe: dict[str, object] | None = None


class PodSpec(_Slim, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()


class Running(_Slim, frozen=True):
    started_at: str | None = None


class Terminated(_Slim, frozen=True):
    reason: str = ""
    message: str = ""
    exit_code: int = 0
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(_Slim, frozen=True):
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Slim, frozen=True):
    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodStatus(_Slim, frozen=True):
    phase: str = ""
    message: str = ""
    start_time: str | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    conditions: tuple[Condition, ...] = ()


class GpuPod(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


GPU_PODS: Final = resources.Resource("", "v1", "pods", "Pod", namespaced=True, type=GpuPod)


@dataclass(frozen=True, slots=True)
class OutOfMemoryEnd:
    """A container of a pod that ended because memory was not enough."""

    at_s: float
    is_gpu: bool
    """Whether GPU memory was not enough; otherwise memory of the node, or unknown."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What one pod says about itself. Labels and annotations are claims of its owner."""

    key: PodKey
    uid: str
    run_uid: str
    """Namespace, and UID of the controller that created the pod; of the pod itself without one.

    A user wrote the reference to the controller: it counts within the namespace of the pod only.
    """
    owner_kind: str
    owner_name: str
    fingerprint: Fingerprint
    node: str
    phase: str
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    restarts: int
    out_of_memory: tuple[OutOfMemoryEnd, ...]
    user: str
    container: Container
    """The container with GPUs."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def is_ended(self) -> bool:
        return self.phase in _ENDED


def read_facts(pod: GpuPod) -> PodFacts | None:
    """Return the facts of a pod with GPUs; None for a pod without."""
    shape = read_shape(pod)
    if shape is None:
        return None
    meta = pod.metadata
    kind, name, uid = find_owner(meta)
    container = find_gpu_container(pod)
    fingerprint = make_fingerprint(
        namespace=meta.namespace,
        owner_kind=kind,
        owner_name=name,
        image=container.image,
        command=(*container.command, *container.args),
        labels=meta.labels,
        shape=shape,
    )
    return PodFacts(
        key=PodKey(meta.namespace, meta.name),
        uid=meta.uid,
        run_uid=f"{meta.namespace}/{uid}",
        owner_kind=kind,
        owner_name=name,
        fingerprint=fingerprint,
        node=pod.spec.node_name,
        phase=pod.status.phase,
        submitted_s=parse_time(meta.creationTimestamp) or 0.0,
        started_s=_find_start(pod),
        ended_s=_find_end(pod) if pod.status.phase in _ENDED else None,
        restarts=sum(each.restart_count for each in pod.status.container_statuses),
        out_of_memory=tuple(_find_out_of_memory(pod)),
        user=meta.labels.get(USER_LABEL, "") or meta.namespace,
        container=container,
        labels=meta.labels,
        annotations=meta.annotations,
    )


def find_owner(meta: ObjectMeta) -> tuple[str, str, str]:
    """Return kind, name and UID of what created the pod: the GPUWorkload, the controller, or the pod itself."""
    controller = meta.controller
    if controller is None:
        return "Pod", meta.name, meta.uid
    if workload := meta.labels.get(_WORKLOAD_LABEL):
        return "GPUWorkload", workload, controller.uid
    template = meta.labels.get(_TEMPLATE_LABEL)
    if controller.kind == "ReplicaSet" and template and controller.name.endswith(f"-{template}"):
        return "Deployment", controller.name.removesuffix(f"-{template}"), controller.uid
    return controller.kind, controller.name, controller.uid


def find_gpu_container(pod: GpuPod) -> Container:
    """Return the container with GPUs, or the first one."""
    found = (each for each in pod.spec.containers if _has_gpus(each))
    return next(found, pod.spec.containers[0] if pod.spec.containers else Container())


def read_shape(pod: GpuPod) -> Shape | None:
    """Return what the pod asks for; None without GPUs. Devices of claims are not counted here."""
    wanted = dict(_sum_gpus(pod))
    profile = next(
        (name.removeprefix(amounts.MIG_PREFIX) for name in wanted if name.startswith(amounts.MIG_PREFIX)), ""
    )
    if profile:
        return Shape(milli_gpus=_MILLI * sum(wanted.values()), mig_profile=profile)
    if wanted.get(amounts.GPU):
        return Shape(milli_gpus=_MILLI * wanted[amounts.GPU])
    if wanted.get(amounts.SHARED):
        return Shape(milli_gpus=_read_share(pod.metadata.annotations) * wanted[amounts.SHARED])
    return Shape() if any(each.resources.claims for each in pod.spec.containers) else None


def _sum_gpus(pod: GpuPod) -> Iterator[tuple[str, int]]:
    total: dict[str, int] = {}
    for container in pod.spec.containers:
        for name, text in {**container.resources.requests, **container.resources.limits}.items():
            if amounts.is_gpu(name):
                total[name] = total.get(name, 0) + _parse_count(text)
    yield from sorted((name, count) for name, count in total.items() if count)


def _parse_count(text: str) -> int:
    try:
        return min(max(quantity.parse_int(text), 0), amounts.MOST_PIECES)
    except errors.KgweError:
        return 0


def _read_share(annotations: Mapping[str, str]) -> int:
    try:
        share = float(annotations.get(_SHARE_ANNOTATION, ""))
    except ValueError:
        return 0
    return round(_MILLI * share) if 0 < share <= 1 else 0


def _has_gpus(container: Container) -> bool:
    wanted = {**container.resources.requests, **container.resources.limits}
    return any(map(amounts.is_gpu, wanted)) or bool(container.resources.claims)


def _find_start(pod: GpuPod) -> float | None:
    """Return when the first container started; None before that."""
    starts = []
    for status in pod.status.container_statuses:
        for state in (status.state, status.last_state):
            started = state.running.started_at if state.running else state.terminated and state.terminated.started_at
            starts.append(parse_time(started))
    known = [each for each in starts if each]
    if known:
        return min(known)
    return parse_time(pod.status.start_time) if pod.status.phase in {"Running", *_ENDED} else None


def _find_end(pod: GpuPod) -> float | None:
    ends = [
        parse_time(status.state.terminated.finished_at)
        for status in pod.status.container_statuses
        if status.state.terminated
    ]
    return max((each for each in ends if each), default=None)


def _find_out_of_memory(pod: GpuPod) -> Iterator[OutOfMemoryEnd]:
    for status in pod.status.container_statuses:
        for state in (status.state, status.last_state):
            end = state.terminated
            if end is None:
                continue
            text = f"{end.message} {pod.status.message}".lower()
            names_gpu = _GPU_MEMORY.search(text) is not None
            if end.reason == _OOM or (end.exit_code and names_gpu):
                yield OutOfMemoryEnd(parse_time(end.finished_at) or 0.0, names_gpu)


@functools.lru_cache(maxsize=4096)
def parse_time(text: str | None) -> float | None:
    """Return the Unix time of a timestamp; None if it is absent or malformed."""
    if not text:
        return None
    try:
        return timestamp.parse(text).timestamp()
    except ValueError:
        return None
