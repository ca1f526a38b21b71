"""What the scheduler knows of the cluster, fed by the informers and by nothing else.

Every replica keeps this up to date, leader or not, so that a new leader knows the cluster at once. Who is interested
hears that a workload should be looked at (`on_workload`, `on_work`), that room may have come free (`on_room`), that a
workload is gone (`on_gone`), and of every pod that no workload of ours owns (`on_foreign`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from kgwe import errors
from kgwe.cluster.gangs.plain_pods import PlainPods
from kgwe.cluster.registry.dra_allocations import Claimed
from kgwe.cluster.registry.pod_sightings import Sightings
from kgwe.cluster.workload import manifests, placement_annotations, pod_changes, runs
from kgwe.cluster.workload.scheduler_policy import (
    domain_weights,
    node_strategy,
    node_weights,
    with_device_mode,
    with_priority,
)
from kgwe.cluster.workload.workload import Details, Workload, from_kgwe, from_warp
from kgwe.kube.translate import podspec
from kgwe.kube.translate.nodes import FleetReader
from kgwe.model.devices import assignment
from kgwe.model.units import amounts
from kgwe.placement.live.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.signatures import Signer
    from kgwe.kube.api import apps, core, policy
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload
    from kgwe.kube.api.kgwe.migstrategy import MIGStrategy
    from kgwe.kube.api.kgwe.schedulerconfig import SchedulerConfig
    from kgwe.kube.api.kgwe.topologydomain import TopologyDomain
    from kgwe.kube.api.kgwe.warp import WarpGPUWorkload
    from kgwe.kube.api.scheduling import PriorityClass
    from kgwe.kube.client.informer import Change
    from kgwe.placement.live.fleet import Fleet, Holding
    from kgwe.placement.live.ledger import Seat
    from kgwe.placement.planning.planner import Seat as PlannedSeat

log = structlog.get_logger(__name__)

Key = tuple[str, str]
"""(API group, namespace/name) of a workload."""


def _ignore(*_: object) -> None:
    pass


class ClusterState:
    """Workloads, what runs them, their pods, and the ledger of the nodes."""

    def __init__(self, signer: Signer | None = None) -> None:
        """`signer`: what it has not signed is not believed; None: a tool that shows decisions and makes none."""
        self.signer = signer
        self.ledger = Ledger(on_freed=self._announce_room)
        self.reader = FleetReader()
        self.claimed = Claimed(self)
        self.workloads: dict[Key, Workload] = {}
        self.keys: dict[str, Key] = {}  # workload uid -> key
        self.runs: dict[str, Run] = {}  # workload uid -> what runs it
        self.orphans: dict[Key, Run] = {}  # workload that is gone -> what still runs for it
        self.pods: dict[str, core.Pod] = {}  # uid -> pod that has not ended
        self.config: SchedulerConfig | None = None
        self.priority_classes: dict[str, int] = {}  # name -> value
        self._claims: dict[str, dict[str, Run]] = {}  # workload uid -> runs that claim to be its own
        self._owners: dict[str, str] = {}  # maker of pods -> uid of the workload that owns it
        self._made: dict[str, dict[str, core.Pod]] = {}  # maker -> pod uid -> pod, not ended
        self._stale = False
        # workload uid -> plan that its run does not show yet, and why it is as it is
        self._moving: dict[str, tuple[tuple[PlannedSeat, ...], Details | None]] = {}
        self.budgets: dict[str, policy.PodDisruptionBudget] = {}
        self.plain_pods = PlainPods()
        #: uid of a pod that others made -> its seat, if it has one
        self.foreign_seat: Callable[[str], Seat | None] = lambda _uid: None
        self.on_foreign: Callable[[str, core.Pod | None], None] = _ignore
        #: hears that nodes came, went or became others
        self.on_nodes: Callable[[], None] = _ignore
        #: hears the name of a node whose state, or that of its cards, may have changed
        self.on_health: Callable[[str], None] = _ignore
        self.on_budgets: Callable[[], None] = _ignore
        #: hears of an error that concerns one object: stage, object, error
        self.on_error: Callable[[str, str, Exception], None] = _ignore
        #: hears the owner and a pod of its run that is being deleted, or is gone though bound and not started
        self.on_ending: Callable[[str, core.Pod], None] = _ignore
        self.sightings = Sightings()
        self.deaf()

    def tell(
        self,
        *,
        on_workload: Callable[[Key], None],
        on_work: Callable[[Key], None],
        on_room: Callable[[], None],
        on_gone: Callable[[str], None],
        on_unseated: Callable[[str, core.Pod], None],
    ) -> None:
        """Call these from now on; `on_workload` hears of a workload that came or changed, `on_work` of one for which
        something else did; `on_gone` the uid of one that no longer exists, `on_unseated` an owner and a pod of it that
        waits behind the gate for its seat."""
        self.on_workload, self.on_work = on_workload, on_work
        self.on_room, self.on_gone, self.on_unseated = on_room, on_gone, on_unseated

    def deaf(self) -> None:
        """Tell nobody (a standby)."""
        self.on_health = self.on_budgets = self.on_ending = _ignore
        self.tell(on_workload=_ignore, on_work=_ignore, on_room=_ignore, on_gone=_ignore, on_unseated=_ignore)

    def _announce_room(self) -> None:
        self.on_room()  # which listener that is changes with leadership

    # --- nodes ------------------------------------------------------------------------------------------

    @property
    def fleet(self) -> Fleet:
        """The fleet as the last events left it; put together anew only when nodes changed since it was asked for."""
        if self._stale:
            self.ledger.fleet.set_nodes(self.reader.nodes(), self.reader.tree())
            self._stale = False
            for problem in self.reader.problems:
                log.warning("topology_problem", problem=problem)
        return self.ledger.fleet

    def nodes_changed(self, changed: bool) -> None:  # noqa: FBT001 - passed on
        if changed:
            self._stale = True
            self.on_nodes()
            self.on_room()

    def on_node(self, change: Change[core.Node]) -> None:
        before = self.reader.holders(change.key)
        try:
            self.nodes_changed(self.reader.set_node(change.key, change.new))
        except Exception as exc:  # noqa: BLE001 - whatever is wrong with it, the other nodes are there
            log.warning("node_unreadable", node=change.key, error=repr(exc))
            self.nodes_changed(self.reader.set_node(change.key, None))
        if self.reader.holders(change.key) is not before:
            self._follow(change.key)
        self.on_health(change.key)

    def on_gpunode(self, change: Change[GPUNode]) -> None:
        before = self.reader.holders(change.key)
        try:
            self.nodes_changed(self.reader.set_gpu_node(change.key, change.new))
        except Exception as exc:  # noqa: BLE001 - see above
            log.warning("gpunode_unreadable", node=change.key, error=repr(exc))
            self.nodes_changed(self.reader.set_gpu_node(change.key, None))
        if self.reader.holders(change.key) is not before:
            self._follow(change.key)
        self.on_health(change.key)

    def _follow(self, node: str) -> None:
        """Its pods have what their kubelet says, whatever was planned."""
        for uid in self.ledger.fleet.holders(node):
            pod = self.pods.get(uid)
            if pod is not None and pod.spec.nodeName == node:
                self.book(pod)
        self.on_room()

    def on_budget(self, change: Change[policy.PodDisruptionBudget]) -> None:
        self.budgets.pop(change.key, None)
        if change.new is not None:
            self.budgets[change.key] = change.new
        self.on_budgets()

    def on_domain(self, change: Change[TopologyDomain]) -> None:
        self.nodes_changed(self.reader.set_domain(change.key, change.new))

    def on_strategy(self, change: Change[MIGStrategy]) -> None:
        self.nodes_changed(self.reader.set_strategy(change.key, change.new))

    def on_config(self, change: Change[SchedulerConfig]) -> None:
        is_same = self.config is not None and change.new is not None and self.config.spec == change.new.spec
        self.config = change.new
        if is_same:
            self.reader.set_config(change.new)
            return  # only its status changed
        self.ledger.fleet.weights = node_weights(change.new)
        self.ledger.fleet.domain_weights = domain_weights(change.new)
        self.ledger.fleet.strategy = node_strategy(change.new)
        self.nodes_changed(self.reader.set_config(change.new))
        for workload in list(self.workloads.values()):
            self.on_work(self._set_workload(workload))

    def on_priority_class(self, change: Change[PriorityClass]) -> None:
        self.priority_classes.pop(change.key, None)
        if change.new is not None:
            self.priority_classes[change.key] = change.new.value
        for workload in [each for each in self.workloads.values() if each.priority_class == change.key]:
            self.on_work(self._set_workload(workload))

    # --- workloads --------------------------------------------------------------------------------------

    def on_warp(self, change: Change[WarpGPUWorkload]) -> None:
        if change.new is not None:
            self.on_workload(self._set_workload(from_warp(change.new)))
        elif change.old is not None:
            self._remove_workload(change.old.metadata.uid)

    def on_kgwe(self, change: Change[GPUWorkload]) -> None:
        if change.new is not None:
            self.on_workload(self._set_workload(from_kgwe(change.new)))
        elif change.old is not None:
            self._remove_workload(change.old.metadata.uid)

    def _set_workload(self, workload: Workload) -> Key:
        is_new = workload.meta.uid not in self.keys
        workload = with_priority(workload, self.config, self.priority_classes)
        self.workloads[workload.key] = with_device_mode(workload, self.config)
        self.keys[workload.meta.uid] = workload.key
        if is_new and workload.meta.uid in self._claims:
            self._adopt(workload.meta.uid)
        return workload.key

    def _remove_workload(self, uid: str) -> None:
        key, run = self.keys.pop(uid), self.runs.get(uid)
        del self.workloads[key]
        self._moving.pop(uid, None)
        self._adopt(uid)  # nobody's any more
        self.on_gone(uid)
        if run is not None and run.meta.deletionTimestamp is None:
            self.orphans[key] = run
            self.on_work(key)

    def workload(self, uid: str) -> Workload | None:
        key = self.keys.get(uid)
        return self.workloads.get(key) if key else None

    def active(self) -> Iterator[tuple[str, str]]:
        """(namespace, workload type) of every workload that has not ended."""
        for workload in self.workloads.values():
            if not workload.finished:
                yield workload.meta.namespace, workload.workload_type

    # --- what runs them ---------------------------------------------------------------------------------

    def on_job(self, change: Change[core.Job]) -> None:
        self._on_run(change, runs.of_job)

    def on_deployment(self, change: Change[apps.Deployment]) -> None:
        self._on_run(change, runs.of_deployment)

    def _on_run(self, change: Change[Any], read: Callable[[Any], Run]) -> None:
        """The label says whose it claims to be; it may be edited like any other."""
        if runs.is_unread(change.old, change.new):
            return
        uids = [obj.metadata.labels.get(manifests.UID_LABEL, "") if obj else "" for obj in (change.old, change.new)]
        key = f"{read.__name__}/{change.key}"
        if change.new is None and change.old is not None:
            gone = change.old.metadata.uid
            self.orphans = {each: run for each, run in self.orphans.items() if run.meta.uid != gone}
        for uid in dict.fromkeys(uid for uid in uids if uid):
            claims = self._claims.setdefault(uid, {})
            was = claims.pop(key, None)
            if change.new is not None and uid == uids[1]:
                try:
                    claims[key] = runs.verified(read(change.new), self.signer)
                except errors.Permanent as exc:
                    log.warning("run_unreadable", name=change.key, error=str(exc))
            if not claims:
                del self._claims[uid]
            self._adopt(uid)
            if runs.is_news(was, claims.get(key)):
                self._touch(uid)

    def _adopt(self, uid: str) -> None:
        """Of the runs that claim to be the workload's, take the one that is, and count what it stands for."""
        workload = self.workload(uid)
        run = runs.chosen(self._claims.get(uid, {}).values(), workload) if workload else None
        before = self.runs.pop(uid, None)
        if before is not None and (run is None or before.meta.uid != run.meta.uid):
            self._moving.pop(uid, None)
            self._owners.pop(runs.maker_key(before), None)
            self.ledger.release(uid)
            self._rebook(runs.maker_key(before))
        if run is None or workload is None:
            return
        run = self.runs[uid] = self._moved(uid, runs.believed(run, workload))
        maker = runs.maker_key(run)
        is_new = maker not in self._owners
        self._owners[maker] = uid
        seats, had = self.wanted_seats(run), self.ledger.places(uid)
        self.ledger.reserve(uid, seats)
        if is_new or before is None or had != seats:
            self._rebook(maker)
        if uid in self._moving:
            return
        if not self._has_bound(run):
            new = [number for number, seat in seats.items() if number not in had or had[number].node != seat.node]
            self.ledger.drop_unfit(uid, new)
        elif before is not None and before.seats == run.seats:
            # Seats it gave up when it was scaled down: others may have their room by now.
            self.ledger.drop_unfit(uid, seats.keys() - had.keys())

    def drop_unfit(self) -> None:
        """Drop restored seats for which there is no room: nodes and pods may have been read after the plans."""
        _ = self.fleet
        for owner in list(self.ledger.owners()):
            run = self.runs.get(owner)
            if run is not None and not self._has_bound(run):
                self.ledger.drop_unfit(owner, list(self.ledger.places(owner)))

    def settle_seats(self, uid: str) -> int:
        """Release the seats beyond what the run is scaled to, and take back those it may have again if there is room.

        Returns how many seats it lacks.
        """
        run = self.runs[uid]
        had = set(self.ledger.places(uid))
        if self.wanted_seats(run).keys() == had:
            return 0
        self._adopt(uid)
        run, has = self.runs[uid], self.ledger.places(uid).keys()
        if has - had:
            self._seat_came_free(uid)
        return len(self.wanted_seats(run).keys() - has)

    def wanted_seats(self, run: Run) -> dict[int, Holding]:
        """Seats that the run is to have now, as it is scaled."""
        return run.reserved(*self._occupied(run))

    def _occupied(self, run: Run) -> tuple[set[int], set[int]]:
        """Seats of a run scaled down that bound pods have, and those that pods to come are made for.

        A user may make pods that name the Job as their owner. Such a pod keeps a seat beyond what the run is scaled to
        only if it is bound and takes the GPUs of the seat: then they count against the quota of its namespace.
        """
        occupied: set[int] = set()
        expected: set[int] = set()
        if not run.is_scaled_down:
            return occupied, expected
        gpus = amounts.gpus(run.wanted)
        for pod in self.pods_of(run).values():
            if pod.metadata.deletionTimestamp is not None or (run.serves and placement_annotations.is_gated(pod)):
                continue
            wanted = self.claimed.requested(pod) if pod.spec.nodeName else {}
            is_whole = bool(wanted) and all(wanted.get(name, 0) >= count for name, count in gpus.items())
            (occupied if is_whole else expected).add(run.seat_of(pod))
        return occupied, expected

    def held_seats(self, run: Run) -> tuple[PlannedSeat, ...]:
        """Seats of the run without those it gave up when it was scaled down."""
        if not run.is_scaled_down:
            return run.seats
        held = self.wanted_seats(run).keys() | run.done
        return tuple(seat for number, seat in enumerate(run.seats) if number in held) or run.seats

    def _has_bound(self, run: Run) -> bool:
        """Whether pods of it are on nodes: its plan was carried out; recovery deals with what it lost."""
        return any(pod.spec.nodeName for pod in self.pods_of(run).values())

    def move(self, uid: str, seats: tuple[PlannedSeat, ...] | None, details: Details | None = None) -> None:
        """The run has these seats from now on, as it will say as soon as it is written; None: as it says.

        `details`: why these seats.
        """
        if seats is None:
            self._moving.pop(uid, None)
        else:
            self._moving[uid] = seats, details
        self._adopt(uid)

    def _moved(self, uid: str, run: Run) -> Run:
        seats, details = self._moving.get(uid, (None, None))
        if seats is None or seats == run.seats:
            self._moving.pop(uid, None)
            return run
        return replace(run, seats=seats, details=details)

    def pods_of(self, run: Run) -> dict[str, core.Pod]:
        """Pods it made that have not ended, by uid."""
        return self._made.get(runs.maker_key(run), {})

    def _touch(self, uid: str) -> None:
        key = self.keys.get(uid)
        if key is not None:
            self.on_work(key)

    # --- pods -------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Give up the places of pods that were not bound in time."""
        self.ledger.expire(now)

    def on_pod(self, change: Change[core.Pod]) -> None:
        if change.old is not None and (change.new is None or change.new.metadata.uid != change.old.metadata.uid):
            self._pod_gone(change.old)
        if change.new is None:
            return
        pod = self.believed(change.new)
        if podspec.is_terminal(pod):
            self._pod_gone(pod)
            return
        uid = pod.metadata.uid
        known, self.pods[uid] = self.pods.get(uid), pod
        self.sightings.saw(uid)
        maker = runs.maker_of(pod)
        if maker:
            self._made.setdefault(maker, {})[uid] = pod
        owner = self._owners.get(maker, "")
        if self._is_foreign(pod, maker):
            self.on_foreign(uid, pod)
        if not pod.spec.nodeName:
            self._wait(pod, owner)
        elif not pod_changes.is_booked_alike(known, pod):
            self.book(pod)
        if owner and pod_changes.tells(change.old, pod):
            self._touch(owner)
            if pod.metadata.deletionTimestamp is not None:
                self._seat_came_free(owner)
                self.on_ending(owner, pod)

    def believed(self, pod: core.Pod) -> core.Pod:
        """The pod without decisions that KGWE did not write."""
        return pod if self.signer is None else self.signer.believed(pod)

    def _pod_gone(self, pod: core.Pod) -> None:
        uid = pod.metadata.uid
        if self.pods.pop(uid, None) is None:
            return
        self.sightings.lost(uid)
        maker = runs.maker_of(pod)
        if maker in self._made:
            self._made[maker].pop(uid, None)
            if not self._made[maker]:
                del self._made[maker]
        successors = self.ledger.successors(uid)
        self.ledger.remove_pod(uid)
        self.on_foreign(uid, None)
        if owner := self._owners.get(maker):
            # Only these: to count every pod again would take a gang of n pods n² steps to end.
            for each in (self.pods[other] for other in successors if other in self.pods):
                self.book(each)
            self._seat_came_free(owner)
            self._touch(owner)
            if pod_changes.left_unstarted(pod):
                self.on_ending(owner, pod)

    def _wait(self, pod: core.Pod, owner: str) -> None:
        if owner and placement_annotations.is_gated(pod) and pod.metadata.deletionTimestamp is None:
            self.on_unseated(owner, pod)

    def _seat_came_free(self, owner: str) -> None:
        for pod in self.unseated(owner):
            self.on_unseated(owner, pod)

    def is_foreign(self, pod: core.Pod) -> bool:
        """Whether others made it. A pod that is labelled as ours waits for what made it to be seen."""
        return self._is_foreign(pod, runs.maker_of(pod))

    def _is_foreign(self, pod: core.Pod, maker: str) -> bool:
        return maker not in self._owners and manifests.UID_LABEL not in pod.metadata.labels

    def unseated(self, owner: str) -> Iterator[core.Pod]:
        """Pods of the owner that wait behind the gate."""
        run = self.runs.get(owner)
        for pod in list(self.pods_of(run).values()) if run else ():
            if not pod.spec.nodeName and placement_annotations.is_gated(pod) and pod.metadata.deletionTimestamp is None:
                yield pod

    def _rebook(self, maker: str) -> None:
        """The run became ours or ceased to be, or its seats changed: its pods count for them, or for themselves."""
        owner = self._owners.get(maker, "")
        for pod in list(self._made.get(maker, {}).values()):
            if owner:
                self.on_foreign(pod.metadata.uid, None)
            if pod.spec.nodeName:
                self.book(pod)
            else:
                self._wait(pod, owner)

    def seat_of(self, pod: core.Pod) -> Seat | None:
        """(owner, number) of the seat a pod was made for."""
        run = self.run_of(pod)
        if run is None:
            return self.foreign_seat(pod.metadata.uid)
        number = run.seat_of(pod)
        return (self._owners[runs.maker_of(pod)], number) if number >= 0 else None

    def run_of(self, pod: core.Pod) -> Run | None:
        """The run of ours that made it."""
        return self.runs.get(self._owners.get(runs.maker_of(pod), ""))

    def is_early(self, pod: core.Pod) -> bool:
        """Whether a pod of a workload is seen before what made it: the watches of pods and Jobs are two."""
        workload = self.workload(pod.metadata.labels.get(manifests.UID_LABEL, ""))
        return workload is not None and workload.meta.namespace == pod.metadata.namespace and self.run_of(pod) is None

    def taken(self, owner: str) -> set[int]:
        """Seats of a run that pods have which are not on their way out; a pod behind the gate has none yet."""
        run = self.runs.get(owner)
        pods = self.pods_of(run).values() if run else ()
        return {
            run.seat_of(pod)
            for pod in pods
            if run and pod.metadata.deletionTimestamp is None and not placement_annotations.is_gated(pod)
        }

    def book(self, pod: core.Pod) -> None:
        """Count a bound pod, in its seat if it has one."""
        meta = pod.metadata
        try:
            wanted, claimed = self.claimed.requested(pod), self.claimed.settle(pod)
            given, held = assignment.planned(meta.annotations), claimed or self.reader.held(pod.spec.nodeName, meta)
            self.ledger.set_pod(meta.uid, pod.spec.nodeName, wanted, self.seat_of(pod), given=given, observed=held)
        except errors.Permanent as exc:
            # Never seen from a real API server. Guessing its size would be worse than saying so.
            log.warning("pod_request_unreadable", pod=pod.metadata.key, error=str(exc))
        except Exception as exc:
            log.exception("pod_not_counted", pod=pod.metadata.key)
            self.on_error("count", pod.metadata.key, exc)
