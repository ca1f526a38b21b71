"""The run of a workload: its Job or Deployment, read into one type.

A user who may edit a Job may edit its annotations, or create the Job. The plan in them counts only if KGWE has signed
it (`signatures`), and if it reserves no more than the workload asks for. The template may be edited too: a seat
reserves no more of its node than was planned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kgwe.cluster.workload import metadata_keys, placement_annotations, plan_details
from kgwe.cluster.workload.manifests import dra_claims, pod_template, run_metadata
from kgwe.kube.api import resources
from kgwe.kube.translate import podspec
from kgwe.model.units import amounts
from kgwe.model.units.limits import MOST_PODS
from kgwe.placement.fleet.taints import Toleration
from kgwe.placement.live.holding import Holding
from kgwe.placement.planning.plan import Seat

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from kgwe.cluster.workload.signatures import Signer
    from kgwe.cluster.workload.workload import Details, Workload
    from kgwe.kube.api import apps, core
    from kgwe.kube.api.meta import ObjectMeta
    from kgwe.kube.api.resources import Resource
    from kgwe.model.units.amounts import Amounts
    from kgwe.placement.planning.ask import Ask


Flavor = tuple[tuple[tuple[str, str], ...], tuple[Toleration, ...]]
"""Node selector and tolerations."""


@dataclass(frozen=True)
class Run:
    """One Job or Deployment that KGWE created."""

    resource: Resource[Any]
    meta: ObjectMeta
    #: pods it should have
    pods: int
    #: their places; empty if the plan is lost
    seats: tuple[Seat, ...]
    #: what each pod takes of its node
    wanted: Amounts
    #: what each pod was planned to take; None: not in the plan, or the plan is not signed
    planned: Amounts | None = None
    #: details of the decision
    details: Details | None = None
    #: seats whose pods have succeeded
    done: frozenset[int] = frozenset()
    #: the condition that ended it
    ended: core.Condition | None = None
    #: it has failed, and its last pods are ending
    failing: bool = False
    suspended: bool = False
    #: its pods get their GPUs by ResourceClaims
    claims: bool = False
    #: pods it created that have not failed
    made: int = 0
    #: pods that may run at a time: fewer than seats if a user scaled it down
    at_once: int = MOST_PODS
    start_time: str | None = None
    #: seconds after which its Job is stopped; None: it is not
    deadline_s: int | None = None
    completion_time: str | None = None
    #: KGWE wrote the annotations with the plan
    is_signed: bool = True
    #: of a Job in a queue of Kueue: node selector and tolerations of its template, to which Kueue may add
    flavor: Flavor | None = None

    @property
    def generation(self) -> int:
        """The generation of the workload for which it was created; 0: unknown."""
        if not self.is_signed:
            return 0
        return max(
            placement_annotations.count_in(self.meta.annotations.get(metadata_keys.GENERATION_ANNOTATION, "")), 0
        )

    @property
    def spec_hash(self) -> str:
        """The hash of the spec for which it was created; empty: unknown."""
        return self.meta.annotations.get(metadata_keys.SPEC_HASH_ANNOTATION, "") if self.is_signed else ""

    @property
    def seats_in_template(self) -> bool:
        """Whether its pods get their seats while they are created."""
        return placement_annotations.SEATS_ANNOTATION in self.meta.annotations

    @property
    def node(self) -> str:
        return self.seats[0].node if self.seats else ""

    @property
    def serves(self) -> bool:
        return self.resource is resources.DEPLOYMENT

    @property
    def is_scaled_down(self) -> bool:
        """Whether it is to have fewer pods at a time than seats whose pods have not succeeded."""
        if self.at_once >= len(self.seats):
            return False
        return self.at_once < sum(number not in self.done for number in range(len(self.seats)))

    def reserved_seats(
        self, occupied: AbstractSet[int] = frozenset(), expected: AbstractSet[int] = frozenset()
    ) -> dict[int, Holding]:
        """The seats it needs: one for each pod that has not succeeded.

        Scaled down, it has the seats of its bound pods (`occupied`), and of the others as many as it may still bind
        pods: first those for which there are pods (`expected`).
        """
        if self.ended is not None or self.suspended:
            return {}
        numbers = [number for number in range(len(self.seats)) if number not in self.done]
        if self.at_once < len(numbers):
            empty = sorted(set(numbers) - occupied, key=lambda number: (number not in expected, number))
            spare = set(empty[max(self.at_once - (len(numbers) - len(empty)), 0) :])
            numbers = [number for number in numbers if number not in spare]
        seats = ((number, self.seats[number]) for number in numbers)
        return {number: Holding(seat.node, self.wanted, seat.gpus, seat.slices) for number, seat in seats}

    def seat_of(self, pod: core.Pod) -> int:
        """The number of the pod's seat; -1: unknown."""
        if len(self.seats) == 1:
            return 0
        if not self.serves:
            return placement_annotations.count_in(
                pod.metadata.annotations.get(placement_annotations.INDEX_ANNOTATION, "")
            )
        owner, number = placement_annotations.seat_of(pod.metadata.annotations) or ("", -1)
        return number if owner == self.meta.labels.get(metadata_keys.UID_LABEL) else -1


def read_job(job: core.Job) -> Run:
    status, spec = job.status, job.spec
    ended = next((c for c in status.conditions if c.type in ("Complete", "Failed") and c.status == "True"), None)
    pods = 1 if spec.completions is None else spec.completions
    return Run(
        resource=resources.JOB,
        meta=job.metadata,
        pods=pods,
        seats=_read_seats(job.metadata, spec.template.spec, pods),
        wanted=podspec.sum_requests(spec.template.spec),
        planned=plan_details.planned_amounts(job.metadata.annotations),
        details=plan_details.decode_details(job.metadata.annotations),
        done=parse_indexes(status.completedIndexes, pods),
        ended=ended,
        failing=any(c.type == "FailureTarget" and c.status == "True" for c in status.conditions),
        suspended=spec.suspend or spec.parallelism == 0,
        claims=dra_claims.is_used(spec.template.spec),
        made=status.active + status.succeeded,
        at_once=spec.parallelism,
        start_time=status.startTime,
        deadline_s=spec.activeDeadlineSeconds,
        completion_time=status.completionTime,
        flavor=_read_flavor(spec.template.spec) if metadata_keys.QUEUE_LABEL in job.metadata.labels else None,
    )


def _read_flavor(template: core.PodSpec) -> Flavor:
    return tuple(sorted(template.nodeSelector.items())), podspec.read_tolerations(template.tolerations)


def apply_flavor(run: Run, ask: Ask) -> Ask:
    """What a pod of the run asks for, with what Kueue added to its template."""
    if run.flavor is None:
        return ask
    selector, tolerations = run.flavor
    constraints = replace(ask.request.constraints, selector=selector, tolerations=tolerations)
    return replace(ask, request=replace(ask.request, constraints=constraints))


def read_deployment(deployment: apps.Deployment) -> Run:
    spec = deployment.spec
    return Run(
        resource=resources.DEPLOYMENT,
        meta=deployment.metadata,
        pods=spec.replicas,
        seats=_read_seats(deployment.metadata, spec.template.spec, spec.replicas),
        wanted=podspec.sum_requests(spec.template.spec),
        planned=plan_details.planned_amounts(deployment.metadata.annotations),
        details=plan_details.decode_details(deployment.metadata.annotations),
        suspended=spec.replicas == 0,
        claims=dra_claims.is_used(spec.template.spec),
        made=deployment.status.replicas,
        at_once=spec.replicas,
    )


def _read_seats(meta: ObjectMeta, template: core.PodSpec, pods: int) -> tuple[Seat, ...]:
    seats = placement_annotations.decode(meta.annotations.get(placement_annotations.PLAN_ANNOTATION, ""))
    pinned = placement_annotations.pinned_node(template)
    if pinned and pods <= 1:
        return seats if [seat.node for seat in seats] == [pinned] else (Seat(pinned),)
    return seats


def drop_unsigned_plan(run: Run, signer: Signer | None) -> Run:
    """The run without its plan, unless KGWE has signed that plan and the run keeps to it.

    Without a signer (a tool that only shows the cluster) every plan is taken as it is.
    """
    if signer is None:
        return run
    if not signer.has_signed(run.meta):
        signer.report_forged(run.resource.kind, run.meta.uid)
        return replace(run, seats=(), planned=None, is_signed=False)
    # A single pod is where its template pins it; the plan has to say the same.
    is_kept = len(run.seats) != 1 or run.seats == placement_annotations.decode(
        run.meta.annotations.get(placement_annotations.PLAN_ANNOTATION, "")
    )
    return run if is_kept and _is_within(run.wanted, run.seats) else replace(run, seats=())


def _is_within(wanted: Amounts, seats: Sequence[Seat]) -> bool:
    """Whether a pod of the present template requests no more GPUs than each seat has."""
    gpus = wanted.get(amounts.GPU, 0)
    slices = sum(count for name, count in wanted.items() if name.startswith(amounts.MIG_PREFIX))
    return all(
        (not seat.gpus or gpus <= seat.gpus.bit_count()) and (not seat.slices or slices <= len(seat.slices))
        for seat in seats
    )


def limit_to_workload(run: Run, workload: Workload) -> Run:
    """The run with a plan within what the workload asks for; a lost plan is rebuilt from the workload's status."""
    placed = workload.status.placed
    # A signed Job in a queue of Kueue without a plan has lost none: Kueue evicted it, or has just admitted it.
    is_lost = run.flavor is None or not run.is_signed
    if not run.seats and placed is not None and is_lost:
        seats = tuple(Seat(node) for node, pods, _ in placed.placements for _ in range(pods))
        run = replace(run, seats=seats if len(seats) == run.pods else ())
    if run.claims:
        # Its template does not say how many; every seat has as many as any other.
        each = max((len(seat.slices) or seat.gpus.bit_count() for seat in run.seats), default=0)
        run = replace(run, wanted=run.wanted | {workload.resource: each})
    most = workload.per_pod * workload.pods
    is_older = 0 < run.generation < workload.meta.generation
    if not is_older and len(run.seats) * run.wanted.get(workload.resource, 0) > most:
        return replace(run, seats=())
    return replace(run, wanted=_within_plan(run, workload))


def _within_plan(run: Run, workload: Workload) -> Amounts:
    """What a pod takes, limited to what was planned.

    Where the plan does not say, the spec does, if it is the one that was planned. Otherwise a seat reserves its GPUs
    and nothing else.
    """
    if (planned := run.planned) is None:
        is_same = run.is_signed and run.generation == workload.meta.generation
        told = pod_template.specified_amounts(workload) if is_same else None
        planned = (told or {amounts.PODS: 1}) | amounts.filter_gpus(run.wanted)
    return {name: min(amount, max(planned[name], 0)) for name, amount in run.wanted.items() if name in planned}


def is_outdated(run: Run, workload: Workload) -> bool:
    """Whether the spec was edited since the run was created. A change of `suspend` alone is no such edit."""
    if not 0 < run.generation < workload.meta.generation:
        return False
    return not run.spec_hash or run.spec_hash != workload.hash_spec()


def is_irrelevant(old: Any, new: Any) -> bool:
    """Whether nothing changed in a Job or Deployment that KGWE reads."""
    if old is None or new is None:
        return False
    return bool(old.spec == new.spec and old.status == new.status and old.metadata.is_like(new.metadata))


def has_changed(was: Run | None, now: Run | None) -> bool:
    """Whether the workload has to be reconciled. The number of pods and the start time do not count: the pods
    themselves are watched."""
    if was is None or now is None or was.made > now.made or not was.meta.is_like(now.meta):
        return True
    return replace(now, meta=was.meta, made=was.made, start_time=was.start_time) != was


def belongs_to(run: Run, workload: Workload) -> bool:
    """Whether the run was created for the workload. Its labels do not prove that: any user may set them."""
    owner = run.meta.controller
    return (
        owner is not None
        and owner.uid == workload.object_uid
        and run.meta.namespace == workload.meta.namespace
        and run.meta.name == run_metadata.job_name(workload)
    )


def choose_run(runs: Iterable[Run], workload: Workload) -> Run | None:
    """The run of the workload among all that claim to be: the oldest that is not being deleted."""
    mine = [run for run in runs if belongs_to(run, workload)]
    return min(mine, key=_adoption_order, default=None)


def _adoption_order(run: Run) -> tuple[bool, str, str]:
    return (run.meta.deletionTimestamp is not None, run.meta.creationTimestamp or "", run.meta.uid)


def maker_of(pod: core.Pod) -> str:
    """The key of the run that created the pod: its Job's uid, or its Deployment's name and run label.

    Owner references are not checked by the API server. They are valid within a namespace only, so a pod never belongs
    to a run of another namespace, whatever uid it names.
    """
    controller = pod.metadata.controller
    if controller is None:
        return ""
    if controller.kind == "Job":
        return f"{pod.metadata.namespace}/{controller.uid}"
    run = pod.metadata.labels.get(metadata_keys.RUN_LABEL, "")
    if controller.kind != "ReplicaSet" or not run:
        return ""
    deployment, _, _ = controller.name.rpartition("-")
    return f"{pod.metadata.namespace}/{deployment}/{run}"


def maker_key(run: Run) -> str:
    """The key that `maker_of` returns for its pods."""
    if not run.serves:
        return f"{run.meta.namespace}/{run.meta.uid}"
    return f"{run.meta.namespace}/{run.meta.name}/{run.meta.labels.get(metadata_keys.RUN_LABEL, '')}"


def parse_indexes(text: str, pods: int) -> frozenset[int]:
    """`0-3,7` as the Job controller writes completed indexes, in ascending order; those of the first `pods` pods."""
    found: set[int] = set()
    following, most = 0, min(pods, MOST_PODS)
    for part in text.split(","):
        first, dash, last = part.partition("-")
        start, end = (
            placement_annotations.count_in(first),
            min(placement_annotations.count_in(last if dash else first), most - 1),
        )
        if following <= start <= end:
            found.update(range(start, end + 1))
            following = end + 1
    return frozenset(found)
