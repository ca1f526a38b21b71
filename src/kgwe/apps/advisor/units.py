"""The units that the advisor compares: a gang as a whole, any other pod alone.

A gang is declared in any dialect, is a GPUWorkload, or is the pods of one Indexed Job, which know each other by index
like the ranks of a training.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.cluster.offline import is_gpu_pod
from kgwe.cluster.workload import placement_annotations
from kgwe.cluster.workload.unpinned import strip_placement
from kgwe.kube.api import resources
from kgwe.kube.translate import podrequest
from kgwe.placement.disruption.running import grant_milli
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.planning.ask import Ask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kgwe.cluster.offline import View
    from kgwe.kube.api import core
    from kgwe.placement.fleet.snapshot import Grant

#: name of the scheduler for pods with a KGWE seat
OURS: Final = "kgwe"
_JOB: Final = "job:"
_CARD_MILLI: Final = 1000


@dataclass(frozen=True, slots=True)
class IndexedJob:
    """An externally created Indexed Job: its pods are compared together, though they are no gang."""

    namespace: str
    uid: str

    @property
    def text(self) -> str:
        """Return the key of its unit."""
        return f"{_JOB}{self.namespace}/{self.uid}"

    @staticmethod
    def is_text(key: str) -> bool:
        return key.startswith(_JOB)


@dataclass(frozen=True)
class Unit:
    """A completely placed gang or pod."""

    key: str
    name: str
    namespace: str
    #: name of the scheduler that placed it
    scheduler: str
    ask: Ask
    grants: tuple[Grant, ...]
    gpus: float

    @property
    def is_gang(self) -> bool:
        return self.ask.pods > 1


@dataclass(frozen=True)
class Partial:
    """A partially placed gang."""

    key: str
    name: str
    placed: int
    pods: int


def key_of(view: View, pod: core.Pod) -> str:
    """Return the key of the unit that a pod belongs to."""
    seat = view.state.seat_of(pod)
    if seat is not None:
        return seat[0]
    owner = view.gangs.owner_of(pod.metadata.uid)
    if owner:
        return owner
    controller = pod.metadata.controller
    if (
        controller is not None
        and controller.kind == "Job"
        and placement_annotations.INDEX_ANNOTATION in pod.metadata.annotations
    ):
        return IndexedJob(pod.metadata.namespace, controller.uid).text
    return pod.metadata.uid


def read_unit(view: View, key: str, pods: Iterable[core.Pod]) -> Unit | Partial | None:
    """Return the unit with this key and these pods; None if it requests nothing that is compared."""
    listed = sorted(pods, key=lambda pod: pod.metadata.name)
    bound = [pod for pod in listed if pod.spec.nodeName]
    if not bound or not all(is_gpu_pod(pod) for pod in listed):
        return None
    name = _name(view, key, listed[0])
    whole = max(len(listed), _pods_of_job(view, listed[0]) if IndexedJob.is_text(key) else 0)
    if len(bound) < whole:
        return Partial(key, name, len(bound), whole)
    ask = _ask(view, key, listed)
    grants = tuple(grant for pod in listed for grant in view.fleet.grants(pod.metadata.uid))
    if ask is None or len({grant.node for grant in grants}) < len({pod.spec.nodeName for pod in listed}):
        return None  # its request cannot be read, or one of its nodes does not exist
    milli = sum(grant_milli(grant, view.fleet.snapshot) for grant in grants)
    meta = listed[0].metadata
    return Unit(key, name, meta.namespace, _scheduler(listed[0]), ask, grants, milli / _CARD_MILLI)


def list_units(view: View) -> Iterator[Unit | Partial]:
    """Return all placed units."""
    pieces: dict[str, list[core.Pod]] = {}
    for pod in view.state.pods.values():
        if pod.metadata.deletionTimestamp is None:
            pieces.setdefault(key_of(view, pod), []).append(pod)
    for key, pods in pieces.items():
        found = read_unit(view, key, pods)
        if found is not None:
            yield found


def _pods_of_job(view: View, pod: core.Pod) -> int:
    """Return the parallelism of its Job; a maximum until the Job was read."""
    owner = pod.metadata.controller
    jobs = view.state.group_objects.stores.get(resources.JOB, {})
    job = jobs.get(f"{pod.metadata.namespace}/{owner.name}") if owner else None
    if job is None or owner is None or job.metadata.uid != owner.uid:
        return sys.maxsize
    left = job.spec.completions - job.status.succeeded if job.spec.completions is not None else job.spec.parallelism
    return int(min(job.spec.parallelism, max(left, 0)))


def _scheduler(pod: core.Pod) -> str:
    annotations = pod.metadata.annotations
    ours = placement_annotations.SEAT_ANNOTATION in annotations or placement_annotations.CARDS_ANNOTATION in annotations
    return (
        OURS if ours or placement_annotations.pinned_node(pod.spec) else pod.spec.schedulerName or "default-scheduler"
    )


def _name(view: View, key: str, pod: core.Pod) -> str:
    controller = pod.metadata.controller
    if IndexedJob.is_text(key) and controller is not None:
        return f"job {pod.metadata.namespace}/{controller.name}"
    return view.state.owners.title(key)


def _ask(view: View, key: str, pods: list[core.Pod]) -> Ask | None:
    """Return the ask, as if no pod of it were placed."""
    try:
        running = None if IndexedJob.is_text(key) else view.census.find(key)
        if running is not None and running.gang is not None:
            gang: GangRequest | None = running.gang
        else:
            pod = pods[0]
            read = podrequest.read_request(
                strip_placement(pod), pieces=view.fleet.shares_per_gpu(pod.spec.nodeName)
            ).request
            gang = GangRequest.uniform(read, len(pods)) if len(pods) > 1 else None
        request = read if gang is None else gang.roles[0].request
    except errors.Permanent:
        return None
    return view.limit_ask(Ask(key, request, pods=len(pods), gang=gang, name=_name(view, key, pods[0])))
