"""Hands the devices of this node to the pods they were planned for.

The kubelet does not say for whom it asks. But it admits one pod after another, and tells on its pod-resources socket
which pods it knows and what each has: the pod it asks for is there and lacks devices. Where that socket is not to be
had, the pods the API server shows on this node that have not started stand in for it.

    GetPreferredAllocation   the devices of that pod's plan; they are kept for it until it has them
    Allocate                 refused for devices that are unknown, unhealthy, or held by another pod

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
from kgwe.apps.agent import nodepods
from kgwe.hardware.kubelet.deviceplugin import Granted
from kgwe.model import places
from kgwe.placement import handout
from kgwe.placement.handout import Ask, Stock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.apps.agent.nodepods import PodSource
    from kgwe.hardware.kubelet.podresources import PodResources
    from kgwe.kube.api import core
    from kgwe.model.held import PodDevices
    from kgwe.model.offer import Offer
    from kgwe.model.wiring import Wiring

log = structlog.get_logger(__name__)

# The kubelet waits for us, and other pods for the kubelet.
_TRUTH_S: Final = 1.0
# From advice to allocation a kubelet takes milliseconds.
_KEPT_S: Final = 5.0
_CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


class Means(enum.StrEnum):
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
class Wording:
    means: tuple[Means, ...] = (Means.ENV,)
    cdi_kind: str = "nvidia.com/gpu"


class _Kept(NamedTuple):
    pod: str
    devices: frozenset[str]
    planned: frozenset[str]
    until: float


class Desk:
    """Answers the kubelet for all resources of the node."""

    def __init__(
        self,
        pods: PodSource,
        truth: PodResources | None,
        *,
        wording: Wording = Wording(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pods = pods
        self._truth = truth
        self._wording = wording
        self._clock = clock
        self._offers: dict[str, dict[str, Offer]] = {}
        self._stocks: dict[str, Stock] = {}
        self._kept: dict[str, list[_Kept]] = collections.defaultdict(list)  # resource -> advice not yet followed
        self._advised: collections.Counter[tuple[str, str]] = collections.Counter()  # (resource, pod)
        self._served: dict[tuple[str, str], frozenset[str]] = {}  # (resource, pod) -> given, where nobody else tells
        self._in_hand: set[str] = set()  # devices another call is just deciding on
        #: hears of every allocation
        self.on_outcome: Callable[[str, Outcome], None] = lambda _resource, _outcome: None

    def stock(self, offers: Mapping[str, Sequence[Offer]], wiring: Wiring | None) -> None:
        """The devices there are from now on."""
        self._offers = {resource: {each.id: each for each in listed} for resource, listed in offers.items()}
        self._stocks = {
            resource: Stock(
                {each.id: each.card for each in listed},
                {each.id: each.start for each in listed if each.start is not None},
                None if any(each.start is not None for each in listed) else wiring,
            )
            for resource, listed in offers.items()
        }

    # --- advice -----------------------------------------------------------------------------------------

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        truth = await self._known()
        asks, to_come = await self._asks(resource, truth)
        now = self._clock()
        kept = self._kept[resource] = [each for each in self._kept[resource] if each.until > now]
        stock = self._stocks.get(resource, Stock())
        # Whoever was advised and has not allocated yet is about to: its devices are as good as gone.
        who = handout.who(asks, must_include, size)
        promised = [each.devices for each in kept if who is None or each.pod != who.pod]
        advice = handout.advise(asks, stock, available, size, must=must_include, spoken_for=to_come.union(*promised))
        planned = who.planned if who is not None else frozenset()
        kept[:] = [each for each in kept if each.pod != advice.pod or not advice.pod]
        kept.append(_Kept(advice.pod, frozenset(advice.devices), planned, now + _KEPT_S))
        if advice.pod:
            self._advised[resource, advice.pod] += 1
        log.debug("devices_advised", resource=resource, pod=advice.pod, devices=advice.devices)
        return advice.devices

    async def _asks(self, resource: str, truth: Sequence[PodDevices] | None) -> tuple[list[Ask], frozenset[str]]:
        """Pods that may be asking, and devices planned for pods that are still to come."""
        here = {pod.metadata.key: pod for pod in self._pods.pods() if not nodepods.is_over(pod)}
        if truth is None:
            waiting = [pod for pod in here.values() if pod.status.phase in ("", "Pending")]
            asks = [self._ask(pod, resource, None) for pod in waiting]
            return [ask for ask in asks if ask.sizes], frozenset()
        known = {each.key: here.pop(each.key, None) for each in truth}
        # Not heard of yet, or the one before it of the same name.
        doubtful = [each for each in truth if (pod := known[each.key]) is None or pod.metadata.deletionTimestamp]
        known |= await self._looked_up(doubtful)
        asks = [
            self._ask(pod, resource, each)
            for each in truth
            if (pod := known[each.key]) is not None and not nodepods.is_over(pod)
        ]
        # Bound to this node, and not yet seen by the kubelet.
        to_come = [self._planned(pod, resource) for pod in here.values() if pod.status.phase in ("", "Pending")]
        pods = {(resource, ask.pod) for ask in asks if ask.sizes}
        for key in [key for key in self._advised if key[0] == resource and key not in pods]:
            del self._advised[key]
        return [ask for ask in asks if ask.sizes], frozenset().union(*to_come)

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
        wanted = nodepods.asked_for(pod, resource)
        if truth is None:
            has, served = self._served.get((resource, key), frozenset()), frozenset[str]()
        else:
            has = frozenset(truth.ids(resource))
            served = frozenset(each.name for each in truth.containers if each.ids(resource))
        if served:
            served |= nodepods.passing(pod)  # they came before
        sizes = tuple(count for name, count in wanted.items() if name not in served)
        if truth is None and len(has) >= sum(wanted.values()):
            sizes = ()
        return Ask(
            key,
            sizes,
            self._planned(pod, resource),
            has,
            pod.metadata.creationTimestamp or "",
            self._advised[resource, key],
        )

    def _planned(self, pod: core.Pod, resource: str) -> frozenset[str]:
        """The devices of this resource that the pod's plan names."""
        plan = places.planned(pod.metadata.annotations)
        if not plan:
            return frozenset()
        slices = set(plan.slices)
        return frozenset(
            each.id
            for each in self._offers.get(resource, {}).values()
            if (plan.cards >> each.card & 1 if each.start is None else (each.card, each.start) in slices)
        )

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
            self.on_outcome(resource, Outcome.REFUSED)
            raise
        self._note(resource, wanted)
        return self._granted(resource, wanted)

    def _check(self, resource: str, wanted: frozenset[str]) -> None:
        offers = self._offers.get(resource, {})
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
                self._served[resource, mine.pod] = self._served.get((resource, mine.pod), frozenset()) | wanted
            if mine.planned:
                outcome = Outcome.PLANNED if wanted <= mine.planned else Outcome.OTHER
        elif any(each.devices & wanted for each in kept):
            outcome = Outcome.OTHER  # the kubelet had reasons of its own (NUMA, an init container)
        self._forget()
        log.info(
            "devices_allocated", resource=resource, devices=sorted(wanted), pod=mine.pod if mine else "", as_=outcome
        )
        self.on_outcome(resource, outcome)

    def _forget(self) -> None:
        here = {pod.metadata.key for pod in self._pods.pods()}
        for key in [key for key in self._served if key[1] not in here]:
            del self._served[key]

    def _granted(self, resource: str, wanted: frozenset[str]) -> Granted:
        offers = sorted(
            (self._offers[resource][each] for each in wanted), key=lambda each: (each.card, each.start or 0)
        )
        means = self._wording.means
        nodes: tuple[str, ...] = ()
        if Means.NODES in means:
            minors = dict.fromkeys(each.minor for each in offers if each.minor is not None)
            nodes = (*(f"/dev/nvidia{minor}" for minor in minors), *_CONTROL_NODES)
        return Granted(
            envs={"NVIDIA_VISIBLE_DEVICES": ",".join(each.id for each in offers)} if Means.ENV in means else {},
            cdi=tuple(f"{self._wording.cdi_kind}={each.id}" for each in offers) if Means.CDI in means else (),
            nodes=nodes,
        )


def _refuse_held(wanted: frozenset[str], truth: Iterable[PodDevices] | None) -> None:
    """A device has one holder: whoever the kubelet lists with it. An init container that has ended is not listed, so
    what it leaves to its own pod is not taken for somebody else's."""
    for pod in truth or ():
        mine = {each for container in pod.containers for _, ids in container.devices for each in ids}
        if taken := wanted & mine:
            raise errors.Conflict(f"{_listed(taken)}: held by {pod.key}")


def _listed(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids))
