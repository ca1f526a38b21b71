"""What runs a workload, as it stands: the Job or Deployment read into one noun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kgwe.apps.scheduler import jobs, seating
from kgwe.kube import resources, translate
from kgwe.placement.live import Holding

if TYPE_CHECKING:
    from kgwe.apps.scheduler.workload import Workload
    from kgwe.kube.api import apps, core
    from kgwe.kube.api.meta import ObjectMeta
    from kgwe.kube.resources import Resource
    from kgwe.model.amounts import Amounts
    from kgwe.placement.planning import Seat


@dataclass(frozen=True)
class Run:
    """One Job or Deployment of ours."""

    resource: Resource[Any]
    meta: ObjectMeta
    seats: tuple[Seat, ...]
    #: what each pod takes of its node
    wanted: Amounts
    #: seats whose pods have succeeded
    done: frozenset[int] = frozenset()
    #: the condition that ended it
    ended: core.Condition | None = None
    suspended: bool = False
    #: pods it has made that have not failed
    made: int = 0
    start_time: str | None = None
    completion_time: str | None = None

    @property
    def generation(self) -> int:
        """The generation of the workload it was made from; 0 when somebody took the annotation away."""
        text = self.meta.annotations.get(jobs.GENERATION_ANNOTATION, "")
        return int(text) if text.isascii() and text.isdigit() else 0

    @property
    def node(self) -> str:
        return self.seats[0].node if self.seats else ""

    def reserved(self) -> dict[int, Holding]:
        """What it may still take: a seat for each pod that has not succeeded."""
        if self.ended is not None or self.suspended:
            return {}
        return {
            number: Holding(seat.node, self.wanted, seat.cards)
            for number, seat in enumerate(self.seats)
            if number not in self.done
        }

    def seat_of(self, pod: core.Pod) -> int:
        """The number of the pod's seat; -1 when it cannot be told."""
        text = pod.metadata.annotations.get(jobs.INDEX_ANNOTATION, "")
        if text.isascii() and text.isdigit():
            return int(text)
        given = seating.seat_of(pod.metadata.annotations)
        if given is not None:
            return given[1]
        return 0 if len(self.seats) == 1 else -1


def of_job(job: core.Job) -> Run:
    status, spec = job.status, job.spec
    ended = next((c for c in status.conditions if c.type in ("Complete", "Failed") and c.status == "True"), None)
    return Run(
        resource=resources.JOB,
        meta=job.metadata,
        seats=seating.decode(job.metadata.annotations.get(seating.PLAN_ANNOTATION, "")),
        wanted=translate.requested(spec.template.spec),
        done=parse_indexes(status.completedIndexes),
        ended=ended,
        suspended=spec.suspend,
        made=status.active + status.succeeded,
        start_time=status.startTime,
        completion_time=status.completionTime,
    )


def of_deployment(deployment: apps.Deployment) -> Run:
    return Run(
        resource=resources.DEPLOYMENT,
        meta=deployment.metadata,
        seats=seating.decode(deployment.metadata.annotations.get(seating.PLAN_ANNOTATION, "")),
        wanted=translate.requested(deployment.spec.template.spec),
        suspended=deployment.spec.replicas == 0,
        made=deployment.status.replicas,
    )


def belongs_to(run: Run, workload: Workload) -> bool:
    """Whether the run is the one made for the workload. Labels alone anybody can set."""
    owner = run.meta.controller
    return (
        owner is not None
        and owner.uid == workload.meta.uid
        and run.meta.namespace == workload.meta.namespace
        and run.meta.name == jobs.job_name(workload)
    )


def maker_of(pod: core.Pod) -> str:
    """What identifies the run a pod belongs to: the uid of its Job, or the workload's of a Deployment's pods."""
    controller = pod.metadata.controller
    if controller is None:
        return ""
    if controller.kind == "Job":
        return controller.uid
    uid = pod.metadata.labels.get(jobs.UID_LABEL, "")
    return f"deployment/{uid}" if controller.kind == "ReplicaSet" and uid else ""


def maker_key(run: Run) -> str:
    """As `maker_of` its pods."""
    if run.resource is resources.JOB:
        return run.meta.uid
    return f"deployment/{run.meta.labels.get(jobs.UID_LABEL, '')}"


def parse_indexes(text: str) -> frozenset[int]:
    """`0-3,7` as the Job controller writes completed indexes."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isascii() and first.isdigit():
            found.update(range(int(first), int(last if last.isdigit() else first) + 1))
    return frozenset(found)
