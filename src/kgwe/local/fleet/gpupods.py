"""Pods of the simulated fleet, with the fields that concern GPUs."""

import datetime as dt
from typing import Any, Final

import msgspec

from kgwe import errors
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.meta import ObjectMeta
from kgwe.model.devices import assignment
from kgwe.model.simfleet import usage
from kgwe.model.units import amounts, quantity

ENDED: Final = frozenset({"Succeeded", "Failed"})


class _Slim(msgspec.Struct, frozen=True, rename="camel"):
    """A struct with the field names of the manifest; unknown fields are skipped."""


class Running(_Slim, frozen=True):
    started_at: str | None = None


class State(_Slim, frozen=True):
    running: Running | None = None


class ContainerStatus(_Slim, frozen=True):
    name: str
    restart_count: int = 0
    state: State = State()


class ClaimUse(_Slim, frozen=True):
    name: str


class Resources(_Slim, frozen=True):
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    claims: tuple[ClaimUse, ...] = ()


class Container(_Slim, frozen=True):
    name: str
    resources: Resources = Resources()
    restart_policy: str = ""
    image: str = ""


class PodSpec(_Slim, frozen=True):
    node_name: str = ""
    restart_policy: str = "Always"
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


class PodStatus(_Slim, frozen=True):
    phase: str = ""
    start_time: str | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()


class GpuPod(msgspec.Struct, frozen=True):
    """The fields of a pod that the simulator needs."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_active(self) -> bool:
        return bool(self.spec.node_name) and self.status.phase not in ENDED

    @property
    def claimed(self) -> int:
        """Return the mask of the GPUs that KGWE has claimed for the pod; 0 if none."""
        has_claims = any(container.resources.claims for container in self.spec.containers)
        return assignment.parse_planned(self.metadata.annotations).gpus if has_claims else 0

    def list_requests(self) -> list[tuple[str, str, int]]:
        """Return (container, resource, count) of all containers that run at the same time."""
        if claimed := self.claimed:
            user = next(container.name for container in self.spec.containers if container.resources.claims)
            return [(user, amounts.GPU, claimed.bit_count())]
        # An init container that never ends is a sidecar and runs with the others.
        beside = [container for container in self.spec.init_containers if container.restart_policy == "Always"]
        asked = [
            (container.name, name, quantity.parse_int(text))
            for container in (*self.spec.containers, *beside)
            for name, text in sorted({**container.resources.requests, **container.resources.limits}.items())
            if amounts.is_gpu(name)
        ]
        return [each for each in asked if each[2]]

    def started_s(self, container: str) -> float | None:
        """Return the last start of the container in seconds since 1970; None if it has not started."""
        for status in self.status.container_statuses:
            if status.name == container and status.state.running and status.state.running.started_at:
                return timestamp.parse(status.state.running.started_at).timestamp()
        return timestamp.parse(self.status.start_time).timestamp() if self.status.start_time else None

    def profile(self) -> tuple[usage.Profile, str]:
        """Return the usage profile of the pod, and the error in its annotation if it has one."""
        text = self.metadata.annotations.get(usage.ANNOTATION)
        if text is not None:
            try:
                return usage.parse_profile(text), ""
            except errors.Permanent as exc:
                return usage.default_profile(self.metadata.labels), str(exc)
        return usage.default_profile(self.metadata.labels), ""

    def fails_at_s(self) -> float | None:
        """Return when the pod runs out of memory, in seconds since 1970; None for never, or before it has started."""
        after_s = usage.fails_after_s(self.profile()[0])
        if after_s is None or self.status.phase != "Running":
            return None
        starts = [self.started_s(container) for container, _, _ in self.list_requests()]
        known = [start for start in starts if start is not None]
        return min(known) + after_s if known else None


GPU_PODS: Final = resources.Resource("", "v1", "pods", "Pod", namespaced=True, type=GpuPod)

# The other containers are stopped with the pod.
_STOPPED: Final = {"exitCode": 143, "reason": "Error"}


def oom_patch(pod: GpuPod, now: dt.datetime) -> dict[str, Any]:
    """Return the status of a pod whose GPU containers have just run out of memory.

    With a restart policy they restart at once, as with a kubelet; otherwise the pod has failed.
    """
    at = timestamp.seconds(now)
    with_gpus = {container for container, _, _ in pod.list_requests()}
    old = {status.name: status for status in pod.status.container_statuses}
    restarts = pod.spec.restart_policy != "Never"
    statuses = []
    for container in pod.spec.containers:
        before = old.get(container.name, ContainerStatus(container.name))
        began = before.state.running.started_at if before.state.running else pod.status.start_time
        hit = container.name in with_gpus
        ended = {"exitCode": 137, "reason": "OOMKilled", "startedAt": began, "finishedAt": at}
        body: dict[str, Any] = {
            "name": container.name,
            "image": container.image,
            "imageID": "",
            "ready": restarts,
            "started": restarts,
            "restartCount": before.restart_count + int(hit and restarts),
        }
        if restarts:
            body["state"] = {"running": {"startedAt": at if hit else began}}
            body["lastState"] = {"terminated": ended} if hit else {}
        else:
            body["state"] = {"terminated": ended if hit else {**ended, **_STOPPED}}
        statuses.append(body)
    if restarts:
        return {"status": {"containerStatuses": statuses}}
    message = "a container ran out of GPU memory"
    return {
        "status": {
            "phase": "Failed",
            "reason": "OOMKilled",
            "message": message,
            "containerStatuses": statuses,
            "conditions": [
                {"type": kind, "status": "False", "reason": "PodFailed", "message": message, "lastTransitionTime": at}
                for kind in ("Ready", "ContainersReady")
            ],
        }
    }
