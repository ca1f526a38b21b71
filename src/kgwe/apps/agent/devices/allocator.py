"""Answers the kubelet's device plugin calls with the devices of the pods' plans.

GetPreferredAllocation: find the pods that the call may be for (`pending_pods`), advise the devices of the most likely
pod's plan, and reserve them (`advice`).

Allocate: refuse devices that are unknown, unhealthy or held by another pod, and more than one share of a GPU.
Otherwise grant them and return how the container gets access.

No state survives a restart: the kubelet lists which pod holds which devices.
"""

from __future__ import annotations

import collections
import enum
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.apps.agent.devices.advice import AdviceBook
from kgwe.apps.agent.devices.pending_pods import find_pending_pods
from kgwe.hardware.kubelet.deviceplugin import AllocationResponse
from kgwe.model.devices import holdings
from kgwe.placement.devices import shared, whole
from kgwe.placement.devices.whole import Ask, Stock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.apps.agent.node_pods import PodSource
    from kgwe.hardware.kubelet.podresources import PodResources
    from kgwe.model.devices.advertised import OfferedDevice
    from kgwe.model.devices.holdings import PodDevices
    from kgwe.model.gpu.topology import Wiring

log = structlog.get_logger(__name__)

# The kubelet waits for the reply, and other pods wait for the kubelet.
_LIST_S: Final = 1.0
_CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


class AccessMethod(enum.StrEnum):
    """How a container gets access to its devices."""

    ENV = "env"
    """NVIDIA_VISIBLE_DEVICES, for the NVIDIA container runtime."""
    CDI = "cdi"
    """Names of the Container Device Interface, for runtimes that have the CDI descriptions."""
    NODES = "nodes"
    """Device nodes of whole GPUs; the image brings its own libraries."""


class Outcome(enum.StrEnum):
    """The outcome of an allocation, for metrics."""

    PLANNED = "planned"
    """The pod got the devices of its plan."""
    OTHER = "other"
    """The pod had a plan and got other devices."""
    UNPLANNED = "unplanned"
    """The pod had no plan, or is unknown."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ContainerAccess:
    """The access methods that the settings choose."""

    methods: tuple[AccessMethod, ...] = (AccessMethod.ENV,)
    cdi_kind: str = "nvidia.com/gpu"


class DeviceAllocator:
    """Answers device plugin calls for all resources of the node."""

    def __init__(
        self,
        pods: PodSource,
        pod_resources: PodResources | None,
        *,
        access: ContainerAccess = ContainerAccess(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
        on_outcome: Callable[[str, Outcome], None] = lambda _resource, _outcome: None,
    ) -> None:
        """`pod_resources` is None if the kubelet does not list the devices of pods. `on_outcome` gets each
        allocation.
        """
        self._pods = pods
        self._pod_resources = pod_resources
        self._access = access
        self._on_outcome = on_outcome
        self._book = AdviceBook(clock)
        self._offers: dict[str, dict[str, OfferedDevice]] = {}
        self._stocks: dict[str, Stock] = {}
        self._in_allocation: set[str] = set()  # devices of running Allocate calls

    def set_devices(self, offers: Mapping[str, Sequence[OfferedDevice]], wiring: Wiring | None) -> None:
        """Set the devices of the node, by resource."""
        self._offers = {resource: {each.id: each for each in listed} for resource, listed in offers.items()}
        self._stocks = {
            resource: Stock(
                {each.id: each.gpu for each in listed},
                {each.id: each.place for each in listed if each.place is not None},
                None if any(each.place is not None for each in listed) else wiring,
                is_shared=any(each.piece is not None for each in listed),
            )
            for resource, listed in offers.items()
        }

    # --- GetPreferredAllocation -------------------------------------------------------------------------

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Advise `size` of the available devices, and reserve them for the most likely pod."""
        listed = await self._list_held()
        offers = self._offers.get(resource, {})
        pods = await find_pending_pods(resource, offers, listed, self._pods, self._book)
        if listed is not None:
            self._book.forget_tries(resource, {ask.pod for ask in pods.asking})
        stock = self._stocks.get(resource, Stock())
        who = whole.find_requester(pods.asking, must_include, size)
        promised = self._find_promised(resource, who, pods.known)
        # This includes devices of the pod's own plan: they could not be granted.
        taken = self._find_taken_otherwise(resource, listed)
        free = [each for each in available if each not in taken]
        if stock.is_shared:
            advice = shared.advise_shares(
                pods.asking, stock, free, size, must=must_include, promised=promised, to_come=pods.to_come
            )
        else:
            spoken_for = frozenset[str]().union(*promised.values(), *(each.planned for each in pods.to_come))
            advice = whole.advise_devices(pods.asking, stock, free, size, must=must_include, spoken_for=spoken_for)
        planned, uid = (who.planned, who.uid) if who is not None else (frozenset[str](), "")
        self._book.advise(resource, pod=advice.pod, uid=uid, devices=advice.devices, planned=planned)
        log.debug("devices_advised", resource=resource, pod=advice.pod, devices=advice.devices)
        return advice.devices

    def _find_promised(
        self, resource: str, who: Ask | None, pods: Iterable[Ask]
    ) -> collections.defaultdict[str, frozenset[str]]:
        """Return the devices reserved for pods other than `who`, by pod; the empty name holds those of unknown
        pods."""
        found: collections.defaultdict[str, frozenset[str]] = collections.defaultdict(frozenset)
        asks = {ask.pod: ask for ask in pods}
        for each in self._book.list_advised(resource):
            # An advised pod is about to allocate, unless it has other devices already or is gone.
            lacks = not each.pod or (each.pod in asks and asks[each.pod].sizes)
            if lacks and (who is None or each.pod != who.pod):
                found[each.pod] |= each.devices
        for ask in asks.values():
            for each in self._book.list_unlisted_grants(resource, ask.pod, ask.uid, ask.has):
                found[ask.pod] |= each.devices - ask.has
        return found

    def _find_taken_otherwise(self, resource: str, listed: Sequence[PodDevices] | None) -> frozenset[str]:
        """Return shares of GPUs that a pod holds whole, whole GPUs of which a pod holds a share, and devices of claims.

        They date from before a change of the setting, or from another plugin. The kubelet counts them as free.
        """
        is_shared = self._stocks.get(resource, Stock()).is_shared
        held = (ids for pod in listed or () for container in pod.containers for _, ids in container.devices)
        taken = {holdings.device_uuid(each) for ids in held for each in ids if holdings.is_share(each) != is_shared}
        taken |= {uuid for pod in listed or () for uuid in holdings.claimed_uuids(pod)}
        return frozenset(each.id for each in self._offers.get(resource, {}).values() if each.uuid in taken)

    async def _list_held(self) -> tuple[PodDevices, ...] | None:
        """Return the devices that pods hold; None if the kubelet does not list them."""
        if self._pod_resources is None:
            return None
        try:
            return await self._pod_resources.list(deadline_s=_LIST_S)
        except errors.KgweError as exc:
            log.warning("pod_resources_not_read", error=str(exc))
            return None

    # --- Allocate ---------------------------------------------------------------------------------------

    async def allocate(self, resource: str, ids: Sequence[str]) -> AllocationResponse:
        """Grant these devices to a container, or refuse them with the reason."""
        wanted = frozenset(ids)
        try:
            self._check_devices(resource, wanted)
            self._in_allocation |= wanted
            try:
                _refuse_held(wanted, await self._list_held())
            finally:
                self._in_allocation -= wanted
        except errors.KgweError as exc:
            log.warning("allocation_refused", resource=resource, devices=sorted(wanted), error=str(exc))
            self._on_outcome(resource, Outcome.REFUSED)
            raise
        self._record_grant(resource, wanted)
        return self._grant_access(resource, wanted)

    def _check_devices(self, resource: str, wanted: frozenset[str]) -> None:
        offers = self._offers.get(resource, {})
        if len(wanted) > 1 and self._stocks.get(resource, Stock()).is_shared:
            raise errors.Permanent(
                f"{len(wanted)} of {resource} for one container: request 1; more shares give no more GPU time"
            )
        if unknown := wanted - offers.keys():
            raise errors.NotFound(f"{_format_ids(unknown)}: unknown on this node")
        if sick := [each for each in wanted if not offers[each].is_healthy]:
            raise errors.Conflict(f"{_format_ids(sick)}: out of service")
        if busy := wanted & self._in_allocation:
            raise errors.Conflict(f"{_format_ids(busy)}: being allocated to another container")

    def _record_grant(self, resource: str, wanted: frozenset[str]) -> None:
        """Record the grant. If it follows an advice, the pod is known; otherwise it is unknown."""
        overlaps = self._book.overlaps_advice(resource, wanted)
        followed = self._book.grant(resource, wanted)
        outcome = Outcome.UNPLANNED
        if followed is not None:
            if followed.planned:
                outcome = Outcome.PLANNED if wanted <= followed.planned else Outcome.OTHER
        elif overlaps:
            outcome = Outcome.OTHER  # the kubelet decided otherwise (NUMA, an init container)
        self._book.forget_pods({pod.metadata.key for pod in self._pods.pods()})
        pod = followed.pod if followed else ""
        log.info("devices_allocated", resource=resource, devices=sorted(wanted), pod=pod, as_=outcome)
        self._on_outcome(resource, outcome)

    def _grant_access(self, resource: str, wanted: frozenset[str]) -> AllocationResponse:
        offers = sorted((self._offers[resource][each] for each in wanted), key=lambda each: (each.gpu, each.place or 0))
        uuids = dict.fromkeys(each.uuid for each in offers)
        methods = self._access.methods
        nodes: tuple[str, ...] = ()
        if AccessMethod.NODES in methods:
            minors = dict.fromkeys(each.minor for each in offers if each.minor is not None)
            nodes = (*(f"/dev/nvidia{minor}" for minor in minors), *_CONTROL_NODES)
        return AllocationResponse(
            envs={"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)} if AccessMethod.ENV in methods else {},
            cdi=tuple(f"{self._access.cdi_kind}={uuid}" for uuid in uuids) if AccessMethod.CDI in methods else (),
            nodes=nodes,
        )


def _refuse_held(wanted: frozenset[str], listed: Iterable[PodDevices] | None) -> None:
    """Raise Conflict if the kubelet lists a pod with one of these devices, or with a whole GPU of which it is a share.

    Init containers that have ended are not listed, so a pod may get the devices of its own init container.
    """
    for pod in listed or ():
        held = {each for container in pod.containers for _, ids in container.devices for each in ids}
        claimed = holdings.claimed_uuids(pod)
        if taken := [
            each
            for each in wanted
            if holdings.device_uuid(each) in claimed or any(holdings.devices_conflict(each, other) for other in held)
        ]:
            raise errors.Conflict(f"{_format_ids(taken)}: held by {pod.key}")


def _format_ids(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids))
