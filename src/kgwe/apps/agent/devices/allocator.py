"""Hands the devices of this node to the pods they were planned for.

The kubelet does not say for whom it asks. But it admits one pod after another, and tells on its pod-resources socket
which pods it knows and what each has: the pod it asks for is there and lacks devices. Where that socket is not to be
had, the pods the API server shows on this node that have not started stand in for it.

    GetPreferredAllocation   the devices of that pod's plan; they are kept for it until it has them
    Allocate                 refused for devices that are unknown, unhealthy, or held by another pod, and for more than
                             one piece of shared cards

Nothing needs to be remembered over a restart: who holds what is what the kubelet says.
"""

from __future__ import annotations

import asyncio
import collections
import enum
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from kgwe import errors
from kgwe.apps.agent import node_pods
from kgwe.hardware.kubelet.deviceplugin import Granted
from kgwe.model.devices import assignment, holdings
from kgwe.model.devices.holdings import PodDevices
from kgwe.placement.devices import shared, whole
from kgwe.placement.devices.whole import Ask, Stock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.apps.agent.node_pods import PodSource
    from kgwe.hardware.kubelet.podresources import PodResources
    from kgwe.kube.api import core
    from kgwe.model.devices.advertised import Offer
    from kgwe.model.gpu.topology import Wiring

log = structlog.get_logger(__name__)

# The kubelet waits for us, and other pods for the kubelet.
_TRUTH_S: Final = 1.0
# From advice to allocation a kubelet takes milliseconds.
_KEPT_S: Final = 5.0
_CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


class AccessMethod(enum.StrEnum):
    """How a container is told of its devices."""

    ENV = "env"
    """NVIDIA_VISIBLE_DEVICES, for the NVIDIA container runtime."""
    CDI = "cdi"
    """Names of the Container Device Interface, for any runtime that has their descriptions."""
    NODES = "nodes"
    """Device nodes of whole cards; libraries are the image's own affair."""


class Outcome(enum.StrEnum):
    """What became of an allocation, for metrics."""

    PLANNED = "planned"
    """The pod got what its plan names."""
    OTHER = "other"
    """It had a plan and got something else."""
    UNPLANNED = "unplanned"
    """It had no plan, or nobody knows who it was."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ContainerAccess:
    means: tuple[AccessMethod, ...] = (AccessMethod.ENV,)
    cdi_kind: str = "nvidia.com/gpu"


class _Advice(NamedTuple):
    pod: str
    devices: frozenset[str]
    planned: frozenset[str]
    until: float
    uid: str = ""


class DeviceAllocator:
    """Answers the kubelet for all resources of the node."""

    def __init__(
        self,
        pods: PodSource,
        truth: PodResources | None,
        *,
        access: ContainerAccess = ContainerAccess(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
        on_outcome: Callable[[str, Outcome], None] = lambda _resource, _outcome: None,
    ) -> None:
        """`on_outcome`: called with the resource and the outcome of every allocation."""
        self._pods = pods
        self._truth = truth
        self._access = access
        self._clock = clock
        self._offers: dict[str, dict[str, Offer]] = {}
        self._stocks: dict[str, Stock] = {}
        self._kept: dict[str, list[_Advice]] = collections.defaultdict(list)  # resource -> advice not yet followed
        self._given: dict[str, list[_Advice]] = collections.defaultdict(list)  # resource -> advice just followed
        self._advised: collections.Counter[tuple[str, str]] = collections.Counter()  # (resource, pod)
        self._served: dict[tuple[str, str], frozenset[str]] = {}  # (resource, pod) -> given, where nobody else tells
        self._in_hand: set[str] = set()  # devices another call is just deciding on
        self._on_outcome = on_outcome

    def set_devices(self, offers: Mapping[str, Sequence[Offer]], wiring: Wiring | None) -> None:
        """The devices there are from now on."""
        self._offers = {resource: {each.id: each for each in listed} for resource, listed in offers.items()}
        self._stocks = {
            resource: Stock(
                {each.id: each.card for each in listed},
                {each.id: each.place for each in listed if each.place is not None},
                None if any(each.place is not None for each in listed) else wiring,
                is_shared=any(each.piece is not None for each in listed),
            )
            for resource, listed in offers.items()
        }

    # --- advice -----------------------------------------------------------------------------------------

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        truth = await self._known()
        pods, to_come = await self._asks(resource, truth)
        asks = [ask for ask in pods if ask.sizes]
        now = self._clock()
        kept = self._kept[resource] = [each for each in self._kept[resource] if each.until > now]
        stock = self._stocks.get(resource, Stock())
        who = whole.who(asks, must_include, size)
        promised = self._promised(resource, who, pods)
        # Also of the pod's own plan: they could not be given.
        taken = self._otherwise_taken(resource, truth)
        available = [each for each in available if each not in taken]
        if stock.is_shared:
            advice = shared.advise(asks, stock, available, size, must=must_include, promised=promised, to_come=to_come)
        else:
            spoken_for = frozenset[str]().union(*promised.values(), *(each.planned for each in to_come))
            advice = whole.advise(asks, stock, available, size, must=must_include, spoken_for=spoken_for)
        kept[:] = [each for each in kept if each.pod != advice.pod or not advice.pod]
        planned, uid = (who.planned, who.uid) if who is not None else (frozenset[str](), "")
        kept.append(_Advice(advice.pod, frozenset(advice.devices), planned, now + _KEPT_S, uid))
        if advice.pod:
            self._advised[resource, advice.pod] += 1
        log.debug("devices_advised", resource=resource, pod=advice.pod, devices=advice.devices)
        return advice.devices

    def _promised(
        self, resource: str, who: Ask | None, pods: Iterable[Ask]
    ) -> collections.defaultdict[str, frozenset[str]]:
        """Devices that are as good as gone, by pod; without a name those of pods nobody knows."""
        found: collections.defaultdict[str, frozenset[str]] = collections.defaultdict(frozenset)
        asks = {ask.pod: ask for ask in pods}
        for each in self._kept[resource]:
            # Whoever was advised and has not allocated yet is about to, unless it has got something else or is gone.
            lacks = not each.pod or (each.pod in asks and asks[each.pod].sizes)
            if lacks and (who is None or each.pod != who.pod):
                found[each.pod] |= each.devices
        for ask in asks.values():
            for each in self._unseen(resource, ask.pod, ask.uid, ask.has):
                found[ask.pod] |= each.devices - ask.has
        return found

    def _unseen(self, resource: str, pod: str, uid: str, has: frozenset[str]) -> list[_Advice]:
        """What the pod was given and the kubelet does not list yet: others may be asking at this very moment."""
        now = self._clock()
        given = self._given[resource] = [each for each in self._given[resource] if each.until > now]
        return [each for each in given if (each.pod, each.uid) == (pod, uid) and not each.devices <= has]

    def _otherwise_taken(self, resource: str, truth: Sequence[PodDevices] | None) -> frozenset[str]:
        """Pieces of cards that somebody has whole, or the reverse: from before the setting was changed, or by another
        plugin. The kubelet takes them for free."""
        is_shared = self._stocks.get(resource, Stock()).is_shared
        listed = (ids for pod in truth or () for container in pod.containers for _, ids in container.devices)
        taken = {holdings.uuid_of(each) for ids in listed for each in ids if holdings.is_piece(each) != is_shared}
        return frozenset(each.id for each in self._offers.get(resource, {}).values() if each.uuid in taken)

    async def _asks(self, resource: str, truth: Sequence[PodDevices] | None) -> tuple[list[Ask], list[Ask]]:
        """Pods the kubelet knows, of which those that lack devices may be asking, and pods that are still to come."""
        here = {pod.metadata.key: pod for pod in self._pods.pods() if not node_pods.is_over(pod)}
        if truth is None:
            waiting = [pod for pod in here.values() if pod.status.phase in ("", "Pending")]
            asks = [self._ask(pod, resource, None) for pod in waiting]
            return asks, []
        known = {each.key: here.pop(each.key, None) for each in truth}
        # Not heard of yet, or the one before it of the same name.
        doubtful = [each for each in truth if (pod := known[each.key]) is None or pod.metadata.deletionTimestamp]
        known |= await self._looked_up(doubtful)
        asks = [
            self._ask(pod, resource, each)
            for each in truth
            if (pod := known[each.key]) is not None and not node_pods.is_over(pod)
        ]
        # Bound to this node, and not yet seen by the kubelet.
        unseen = [pod for pod in here.values() if pod.status.phase in ("", "Pending")]
        to_come = [self._ask(pod, resource, PodDevices(pod.metadata.namespace, pod.metadata.name)) for pod in unseen]
        pods = {(resource, ask.pod) for ask in asks if ask.sizes}
        for key in [key for key in self._advised if key[0] == resource and key not in pods]:
            del self._advised[key]
        return asks, to_come

    async def _looked_up(self, pods: Sequence[PodDevices]) -> dict[str, core.Pod | None]:
        """As far as the API server tells in time: the kubelet waits."""
        asked = {each.key: asyncio.ensure_future(self._pods.find(each.namespace, each.name)) for each in pods}
        if asked:
            _, late = await asyncio.wait(asked.values(), timeout=_TRUTH_S)
            for task in late:
                task.cancel()
        return {key: task.result() if task.done() and not task.cancelled() else None for key, task in asked.items()}

    def _ask(self, pod: core.Pod, resource: str, truth: PodDevices | None) -> Ask:
        key = pod.metadata.key
        wanted = node_pods.count_requested(pod, resource)
        if truth is None:
            has, served = self._served.get((resource, key), frozenset()), frozenset[str]()
        else:
            has = frozenset(truth.ids(resource))
            served = frozenset(each.name for each in truth.containers if each.ids(resource))
        if served:
            served |= node_pods.init_containers(pod)  # they came before
        sizes = [count for name, count in wanted.items() if name not in served]
        if truth is None and len(has) >= sum(wanted.values()):
            sizes = []
        # Once something is listed, what is not was an init container's.
        for each in self._unseen(resource, key, pod.metadata.uid, has) if not served else ():
            if len(each.devices) in sizes:
                sizes.remove(len(each.devices))
        return Ask(
            key,
            tuple(sizes),
            self._planned(pod, resource),
            has,
            pod.metadata.creationTimestamp or "",
            uid=pod.metadata.uid,
            advised=self._advised[resource, key],
            lacks=node_pods.count_peak(pod, resource) - len(has),
        )

    def _planned(self, pod: core.Pod, resource: str) -> frozenset[str]:
        """The devices of this resource that the pod's plan names.

        The agent has no key to check who wrote the plan. One that names more cards or slices than the pod asks for is
        not KGWE's.
        """
        plan = assignment.planned(pod.metadata.annotations)
        if not plan:
            return frozenset()
        slices = set(plan.slices)
        found = [
            each
            for each in self._offers.get(resource, {}).values()
            if (plan.cards >> each.card & 1 if each.start is None else (each.card, each.start) in slices)
        ]
        if len({(each.card, each.start) for each in found}) > node_pods.count_peak(pod, resource):
            return frozenset()
        return frozenset(each.id for each in found)

    async def _known(self) -> tuple[PodDevices, ...] | None:
        if self._truth is None:
            return None
        try:
            return await self._truth.list(deadline_s=_TRUTH_S)
        except errors.KgweError as exc:
            log.warning("pod_resources_not_read", error=str(exc))
            return None

    # --- allocation -------------------------------------------------------------------------------------

    async def allocate(self, resource: str, ids: Sequence[str]) -> Granted:
        wanted = frozenset(ids)
        try:
            self._check(resource, wanted)
            self._in_hand |= wanted
            try:
                _refuse_held(wanted, await self._known())
            finally:
                self._in_hand -= wanted
        except errors.KgweError as exc:
            log.warning("allocation_refused", resource=resource, devices=sorted(wanted), error=str(exc))
            self._on_outcome(resource, Outcome.REFUSED)
            raise
        self._note(resource, wanted)
        return self._granted(resource, wanted)

    def _check(self, resource: str, wanted: frozenset[str]) -> None:
        offers = self._offers.get(resource, {})
        if len(wanted) > 1 and self._stocks.get(resource, Stock()).is_shared:
            raise errors.Permanent(
                f"{len(wanted)} of {resource} for one container: ask for 1, two pieces are not twice as much"
            )
        if unknown := wanted - offers.keys():
            raise errors.NotFound(f"{_listed(unknown)}: not on this node")
        if sick := [each for each in wanted if not offers[each].is_healthy]:
            raise errors.Conflict(f"{_listed(sick)}: out of service")
        if busy := wanted & self._in_hand:
            raise errors.Conflict(f"{_listed(busy)}: just being given to another container")

    def _note(self, resource: str, wanted: frozenset[str]) -> None:
        """Whose it is, as far as that can be told: advice that was followed names the pod."""
        kept = self._kept[resource]
        mine = next((each for each in kept if each.devices == wanted), None)
        outcome = Outcome.UNPLANNED
        if mine is not None:
            kept.remove(mine)
            self._advised.pop((resource, mine.pod), None)
            if mine.pod:
                self._given[resource].append(mine._replace(until=self._clock() + _KEPT_S))
                self._served[resource, mine.pod] = self._served.get((resource, mine.pod), frozenset()) | wanted
            if mine.planned:
                outcome = Outcome.PLANNED if wanted <= mine.planned else Outcome.OTHER
        elif any(each.devices & wanted for each in kept):
            outcome = Outcome.OTHER  # the kubelet had reasons of its own (NUMA, an init container)
        self._forget()
        log.info(
            "devices_allocated", resource=resource, devices=sorted(wanted), pod=mine.pod if mine else "", as_=outcome
        )
        self._on_outcome(resource, outcome)

    def _forget(self) -> None:
        here = {pod.metadata.key for pod in self._pods.pods()}
        for key in [key for key in self._served if key[1] not in here]:
            del self._served[key]

    def _granted(self, resource: str, wanted: frozenset[str]) -> Granted:
        offers = sorted(
            (self._offers[resource][each] for each in wanted), key=lambda each: (each.card, each.place or 0)
        )
        uuids = dict.fromkeys(each.uuid for each in offers)
        means = self._access.means
        nodes: tuple[str, ...] = ()
        if AccessMethod.NODES in means:
            minors = dict.fromkeys(each.minor for each in offers if each.minor is not None)
            nodes = (*(f"/dev/nvidia{minor}" for minor in minors), *_CONTROL_NODES)
        return Granted(
            envs={"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)} if AccessMethod.ENV in means else {},
            cdi=tuple(f"{self._access.cdi_kind}={uuid}" for uuid in uuids) if AccessMethod.CDI in means else (),
            nodes=nodes,
        )


def _refuse_held(wanted: frozenset[str], truth: Iterable[PodDevices] | None) -> None:
    """A device has one holder: whoever the kubelet lists with it. An init container that has ended is not listed, so
    what it leaves to its own pod is not taken for somebody else's. A card that is held whole has no pieces to give."""
    for pod in truth or ():
        mine = {each for container in pod.containers for _, ids in container.devices for each in ids}
        if taken := [each for each in wanted if any(holdings.clash(each, other) for other in mine)]:
            raise errors.Conflict(f"{_listed(taken)}: held by {pod.key}")


def _listed(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids))
