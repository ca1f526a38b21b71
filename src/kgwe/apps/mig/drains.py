"""Evicts pods that consent to be moved for a new MIG layout.

    GPUNode.spec: slices withheld, pods to evict, request ──► evicted ──► all gone ──► the layout changes
                                                                        └ a budget refuses: the drain is cancelled

The state is in the GPUNode, written before the first eviction, so a new leader continues. Pods are evicted by the
eviction API. Their controllers recreate them, and they are placed like any other pod. Pods without a controller, and
pods of gangs, are not moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.apps.mig import census, demand
from kgwe.cluster.workload import metadata_keys, placement_annotations, replica_uid
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.kgwe import gpunode
from kgwe.kube.api.kgwe.gpunode import DrainedPod
from kgwe.kube.client import eviction
from kgwe.kube.client.client import DisruptionBudgetRefused
from kgwe.kube.client.events import Event
from kgwe.kube.translate import podspec
from kgwe.model.gpu import mig
from kgwe.model.units import amounts
from kgwe.sharing.mig.lifecycle import format_placement
from kgwe.sharing.mig.types import Drain, MovablePod, SliceRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kgwe.apps.mig.census import Held, MigCard
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import CardSpec, GPUNode
    from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload
    from kgwe.kube.api.meta import ObjectMeta
    from kgwe.kube.client.client import KubeClient
    from kgwe.sharing.mig.types import PartitionedGpu

log = structlog.get_logger(__name__)

#: annotation of a pod, or of a GPUWorkload for all its pods
ANNOTATION: Final = "kgwe.nvidia.io/drain"
_CONSENT: Final = "consent"
# Pods of these controllers would return to the same node.
_BOUND_TO_NODE: Final = ("DaemonSet", "Node")

Record = Callable[[Event], None]


# --- consent --------------------------------------------------------------------------------------------


class ConsentingPods:
    """The pods that may be evicted, and those that were. `refused` has the uids of pods that a budget protects."""

    def __init__(self, pods: Iterable[core.Pod], workloads: Iterable[GPUWorkload], refused: Collection[str]) -> None:
        self._workloads = {each.metadata.uid: each for each in workloads}
        self.pods = {pod.metadata.uid: pod for pod in pods if pod.spec.nodeName and self._has_consent(pod)}
        self._refused = refused

    def _has_consent(self, pod: core.Pod) -> bool:
        meta = pod.metadata
        workload = self._workload(meta)
        said = workload.metadata.annotations.get(ANNOTATION) if workload else None
        return meta.annotations.get(ANNOTATION, said) == _CONSENT

    def _workload(self, meta: ObjectMeta) -> GPUWorkload | None:
        """Return the workload that the pod's label names, in the pod's namespace."""
        found = self._workloads.get(replica_uid.object_uid(meta.labels.get(metadata_keys.UID_LABEL, "")))
        return found if found is not None and found.metadata.namespace == meta.namespace else None

    def find_movable(
        self,
        gpu_nodes: Mapping[str, GPUNode],
        taken: Mapping[str, Held],
        nodes: demand.Nodes,
        *,
        started_before_s: float,
    ) -> dict[str, MovablePod]:
        """Return uid -> the slices of the pod and its possible nodes. Seconds count from 1970."""
        found: dict[str, MovablePod] = {}
        for name in {pod.spec.nodeName for pod in self.pods.values()} & gpu_nodes.keys():
            has: dict[str, list[tuple[str, mig.Placement]]] = {}
            owners = taken[name].owners
            for device in gpu_nodes[name].status.gpus:
                geometry = census.geometry_of(device)
                for each in device.mig.instances:
                    uid = owners.get((device.index, each.start), "")
                    if uid in self.pods and geometry is not None and each.profile in geometry.profiles:
                        place = mig.Placement(geometry.profiles[each.profile], each.start)
                        has.setdefault(uid, []).append((device.uuid, place))
            for uid, slices in has.items():
                home = self._find_request(self.pods[uid], nodes)
                if home is not None and home.count == len(slices) and self._may_go(self.pods[uid], started_before_s):
                    is_leaving = self.pods[uid].metadata.deletionTimestamp is not None
                    found[uid] = MovablePod(uid, home, tuple(slices), is_leaving)
        return found

    def _may_go(self, pod: core.Pod, started_before_s: float) -> bool:
        meta, status = pod.metadata, pod.status
        owner = meta.controller
        return (
            meta.uid not in self._refused
            and status.phase == "Running"
            and owner is not None
            and owner.kind not in _BOUND_TO_NODE
            and placement_annotations.SEAT_ANNOTATION not in meta.annotations
            and placement_annotations.SEATED_LABEL not in meta.labels
            and status.startTime is not None
            and timestamp.parse(status.startTime).timestamp() <= started_before_s
        )

    def _find_request(self, pod: core.Pod, nodes: demand.Nodes) -> SliceRequest | None:
        """Return the request of the recreated pod; None if it is unknown."""
        wanted = demand.requested_slices(pod.spec)
        if wanted is None or podspec.sum_requests(pod.spec).get(amounts.GPU):
            return None
        if metadata_keys.UID_LABEL not in pod.metadata.labels:
            return SliceRequest(f"pod {pod.metadata.key}", *wanted, nodes.for_pod(pod.spec))
        # Its own spec pins it to the planned node.
        workload = self._workload(pod.metadata)
        return (
            SliceRequest(f"pod {pod.metadata.key}", *wanted, demand.allowed_nodes(workload, nodes))
            if workload
            else None
        )


# --- recorded drains ------------------------------------------------------------------------------------


def read_drain(
    seen: MigCard, taken: Held, pods: Mapping[str, core.Pod], movable: Collection[str], *, begun_after_s: float
) -> Drain | None:
    """Return the drain recorded in a GPUNode; `pods` by uid. A drain that began before the limit has failed."""
    asked = seen.asked
    if asked is None or asked.drain is None:
        return None
    places = tuple(place for place in seen.card.layout if format_placement(place) in asked.mig.withheld)
    uids = frozenset(each.uid for each in asked.drain.pods)
    owners = {taken.owners.get((seen.device.index, place.start)) for place in places} - {None}
    staying = [
        uid for uid in uids if uid in pods and pods[uid].metadata.deletionTimestamp is None and uid not in movable
    ]
    is_late = timestamp.parse(asked.drain.since).timestamp() < begun_after_s
    is_broken = not places or bool(owners - uids) or bool(staying) or is_late
    return Drain(asked.drain.waiting, uids, places, is_broken)


def write_drain(
    asked: CardSpec, old: PartitionedGpu, new: PartitionedGpu, movable: Mapping[str, MovablePod], now: str
) -> CardSpec:
    """Write a drain: the layout stays, and these pods must leave."""
    if new.drain is None:
        return end_drain(asked)
    if new.drain == old.drain:
        return asked
    pods = tuple(DrainedPod(movable[uid].request.name.removeprefix("pod "), uid) for uid in sorted(new.drain.pods))
    withheld = tuple(format_placement(place) for place in new.drain.places)
    log.info("gpu_drain_started", node=new.node, uuid=new.uuid, withheld=withheld, waiting=new.drain.ask)
    layout = msgspec.structs.replace(asked.mig, withheld=withheld)
    return msgspec.structs.replace(asked, mig=layout, drain=gpunode.Drain(new.drain.ask, pods, now))


def end_drain(asked: CardSpec) -> CardSpec:
    """Remove a drain."""
    if asked.drain is None and not asked.mig.withheld:
        return asked
    return msgspec.structs.replace(asked, mig=msgspec.structs.replace(asked.mig, withheld=()), drain=None)


def manifest(card: CardSpec) -> dict[str, object]:
    """Return the desired layout as written, without empty fields."""
    layout: dict[str, object] = {"enabled": card.mig.enabled}
    layout |= {"instances": list(card.mig.instances)} if card.mig.instances else {}
    layout |= {"withheld": list(card.mig.withheld)} if card.mig.withheld else {}
    found: dict[str, object] = {"uuid": card.uuid, "mig": layout}
    if card.since is not None:
        found["since"] = card.since
    if card.drain is not None:
        pods = [{"pod": each.pod, "uid": each.uid} for each in card.drain.pods]
        found["drain"] = {"waiting": card.drain.waiting, "pods": pods, "since": card.drain.since}
    return found


# --- evictions ------------------------------------------------------------------------------------------


class DrainExecutor:
    """Evicts the pods that GPUNodes name, and keeps the refusals. `clock` is monotonic."""

    def __init__(
        self, client: KubeClient, *, record: Record, pause_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`pause_s` is the time until a pod protected by a budget is tried again."""
        self._client = client
        self._record = record
        self._pause_s = pause_s
        self._clock = clock
        self._until: dict[str, float] = {}
        #: outcome -> pods
        self.asked = {"accepted": 0, "refused": 0}

    @property
    def refused(self) -> frozenset[str]:
        now_s = self._clock()
        self._until = {uid: until for uid, until in self._until.items() if until > now_s}
        return frozenset(self._until)

    async def evict_pods(
        self, gpu_nodes: Iterable[GPUNode], pods: Iterable[core.Pod], movable: Collection[str]
    ) -> bool:
        """Evict the pods that were not evicted yet; return whether the first eviction of a layout was refused.

        `movable` has the uids of pods that consent; other pods named in a GPUNode are ignored.
        """
        drained = [(node, card) for node in gpu_nodes for card in node.spec.cards if card.drain is not None]
        if not drained:
            return False
        by_uid = {pod.metadata.uid: pod for pod in pods}
        in_vain: set[str] = set()
        for node, card in drained:
            for named in card.drain.pods if card.drain and card.drain.waiting not in in_vain else ():
                pod = by_uid.get(named.uid)
                if pod is None or pod.metadata.deletionTimestamp is not None or named.uid not in movable:
                    continue
                if card.drain and not await self._evict(pod, node, card, card.drain.waiting):
                    in_vain.add(card.drain.waiting)
                    break
        return bool(in_vain)

    async def _evict(self, pod: core.Pod, node: GPUNode, card: CardSpec, waiting: str) -> bool:
        index = next((each.index for each in node.status.gpus if each.uuid == card.uuid), -1)
        what = f"GPU {index} of node {node.metadata.name} must change its MIG layout for {waiting}"
        try:
            await eviction.evict_pod(self._client, pod)
        except errors.NotFound:
            return True
        except DisruptionBudgetRefused as exc:
            self.asked["refused"] += 1
            self._until[pod.metadata.uid] = self._clock() + self._pause_s
            self._record(Event(resources.POD, pod.metadata, "Normal", "DrainRefused", f"{what}, but {exc}", "Draining"))
            log.info("drain_refused", pod=pod.metadata.key, node=node.metadata.name, error=str(exc))
            return False
        self.asked["accepted"] += 1
        note = f"{what}; the pod consents to be moved"
        self._record(Event(resources.POD, pod.metadata, "Normal", "Drained", note, "Draining"))
        log.info("drained", pod=pod.metadata.key, node=node.metadata.name, card=card.uuid, waiting=waiting)
        return True
