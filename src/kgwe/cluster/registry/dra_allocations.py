"""GPUs that are allocated to ResourceClaims (DRA), whether or not KGWE planned them.

A claim holds its devices from allocation to deallocation, independent of its pods. So the claim itself is counted, with
the devices in its status. A pod in a seat, or one that asked for `nvidia.com/gpu` and got a claim for it, is counted
for the same GPUs already: then the claim only says which ones the pod has.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from kgwe.cluster.workload.owner import device_claim_text
from kgwe.kube.translate import podspec
from kgwe.model.devices.assignment import NO_DEVICES, DeviceSet
from kgwe.model.gpu import mig
from kgwe.model.units import amounts
from kgwe.placement.live.holding import Holding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.cluster.registry.fleet_state import FleetState
    from kgwe.cluster.registry.pod_index import PodIndex
    from kgwe.cluster.registry.run_table import RunTable
    from kgwe.kube.api import core
    from kgwe.kube.api.resource import ResourceClaim, ResourceSlice
    from kgwe.kube.client.informer import Change
    from kgwe.model.units.amounts import Amounts

_Owner = tuple[str, str]
"""(namespace, uid) of a pod."""


class DraAllocations:
    """Claims with allocated GPUs, kept in step with the ledger."""

    def __init__(self, fleet_state: FleetState, pods: PodIndex, run_table: RunTable) -> None:
        self._reader = fleet_state.reader
        self._ledger = fleet_state.ledger
        self._pods = pods
        self._run_table = run_table
        self._claims: dict[str, ResourceClaim] = {}  # uid -> claim with allocated GPUs
        self._in_pool: dict[str, dict[str, None]] = collections.defaultdict(dict)  # pool -> claims allocated from it
        self._of_pod: dict[_Owner, dict[str, None]] = collections.defaultdict(dict)  # pod -> uids of its claims

    def update_slice(self, change: Change[ResourceSlice]) -> list[core.Pod]:
        """The devices of a pool changed; returns the pods to count again."""
        pools = {each.spec.pool.name for each in (change.old, change.new) if each is not None}
        uids = [uid for pool in pools for uid in self._in_pool.get(pool, ())]
        return [pod for uid in uids if (pod := self._count_claim(self._claims[uid])) is not None]

    def update_claim(self, change: Change[ResourceClaim]) -> list[core.Pod]:
        """A claim changed; returns the pods to count again."""
        if change.old is not None and (change.new is None or change.new.metadata.uid != change.old.metadata.uid):
            self._forget_claim(change.old)
        claim = change.new
        if claim is None:
            return []
        if not claim.gpus:
            self._forget_claim(claim)
            return []
        self._claims[claim.metadata.uid] = claim
        for device in claim.gpus:
            self._in_pool[device.pool][claim.metadata.uid] = None
        if (owner := _pod_of(claim)) is not None:
            self._of_pod[owner][claim.metadata.uid] = None
        pod = self._count_claim(claim)
        return [] if pod is None else [pod]

    def sum_requests(self, pod: core.Pod) -> Amounts:
        """What the pod takes of its node; GPUs that it claims are not in its spec but in the plan of its run."""
        run = self._run_table.run_of(pod)
        wanted = podspec.sum_requests(pod.spec)
        return wanted | amounts.filter_gpus(run.wanted) if run is not None and run.claims else wanted

    def settle(self, pod: core.Pod) -> DeviceSet:
        """Devices of a bound pod's own claims, if the pod is counted for them; otherwise count the claims."""
        found = NO_DEVICES
        mine = self._of_pod.get((pod.metadata.namespace, pod.metadata.uid), ())
        is_counted = bool(mine and amounts.filter_gpus(self.sum_requests(pod)))
        for uid in mine:
            if is_counted:
                self._drop_devices(uid)
                found = _merge_devices(found, self._find_devices(self._claims[uid]).get(pod.spec.nodeName, NO_DEVICES))
            else:
                self._hold_devices(self._claims[uid])
        return found

    def _count_claim(self, claim: ResourceClaim) -> core.Pod | None:
        """Count the claim; returns the bound pod that has to be counted for it instead, if there is one."""
        pod = self._find_pod(claim)
        if pod is None or not amounts.filter_gpus(self.sum_requests(pod)):
            self._hold_devices(claim)
        elif pod.spec.nodeName:
            return pod
        else:
            self._drop_devices(claim.metadata.uid)  # its seat holds them until it is bound
        return None

    def _find_pod(self, claim: ResourceClaim) -> core.Pod | None:
        owner = _pod_of(claim)
        pod = self._pods.by_uid.get(owner[1]) if owner is not None else None
        return pod if pod is not None and pod.metadata.namespace == claim.metadata.namespace else None

    def _hold_devices(self, claim: ResourceClaim) -> None:
        places = self._find_devices(claim)
        if len(places) != 1:
            # Its node is unknown, or there are several, which this driver never allocates to one claim.
            self._drop_devices(claim.metadata.uid)
            return
        ((node, mine),) = places.items()
        holding = Holding(node, self._count_devices(node, mine), mine.gpus, mine.slices, observed=True)
        self._ledger.hold_devices(device_claim_text(claim.metadata.uid), holding)

    def _forget_claim(self, claim: ResourceClaim) -> None:
        uid = claim.metadata.uid
        known = self._claims.pop(uid, None)
        for device in known.gpus if known else ():
            self._in_pool[device.pool].pop(uid, None)
        owner = _pod_of(claim)
        if owner is not None and owner in self._of_pod:
            self._of_pod[owner].pop(uid, None)
            if not self._of_pod[owner]:
                del self._of_pod[owner]
        self._drop_devices(uid)

    def _drop_devices(self, uid: str) -> None:
        self._ledger.drop_devices(device_claim_text(uid))

    def _find_devices(self, claim: ResourceClaim) -> dict[str, DeviceSet]:
        """Node -> the GPUs and slices that are allocated to the claim there."""
        found: dict[str, DeviceSet] = {}
        reader = self._reader
        for device in claim.gpus:
            named = reader.slices.find_device(device.pool, device.device)
            if named is None:
                continue
            node, uuid = named
            cards = reader.cards(node)
            whole = next((1 << card for card, each in cards.uuids.items() if each == uuid), 0)
            parts = tuple(place for place, each in cards.slices.items() if each[1] == uuid)
            found[node] = _merge_devices(found.get(node, NO_DEVICES), DeviceSet(whole, parts))
        return found

    def _count_devices(self, node: str, places: DeviceSet) -> Mapping[str, int]:
        slices = self._reader.cards(node).slices
        wanted = collections.Counter(mig.resource_of(slices[each][2]) for each in places.slices)
        # A claim is no pod.
        return {amounts.GPU: places.gpus.bit_count(), **wanted, amounts.PODS: 0}


def _pod_of(claim: ResourceClaim) -> _Owner | None:
    """The pod that owns the claim; None when any pod may use it.

    An owner reference is valid within the claim's namespace only: a claim elsewhere is not the pod's.
    """
    owner = claim.metadata.controller
    return (claim.metadata.namespace, owner.uid) if owner is not None and owner.kind == "Pod" else None


def _merge_devices(one: DeviceSet, other: DeviceSet) -> DeviceSet:
    return DeviceSet(one.gpus | other.gpus, tuple(sorted({*one.slices, *other.slices})))
