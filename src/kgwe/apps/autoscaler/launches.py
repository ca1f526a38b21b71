"""Buying: every purchase is written into the status of its policy before the cloud is asked."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from kgwe.apps.autoscaler import marks
from kgwe.cloud.provider import CapacityType, InstanceState, LaunchErrorKind, LaunchRequest
from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe.autoscalingpolicy import LaunchRecord
from kgwe.scaling.launch_memory import LaunchMemory, Offer, Setback

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.apps.autoscaler.census import BoughtNode, Census
    from kgwe.apps.autoscaler.pool_offers import PolicyOffers
    from kgwe.cloud.provider import Instance, LaunchResult, Provider
    from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicy
    from kgwe.scaling.purchase.orders import PurchaseOrder

log = structlog.get_logger(__name__)

_MOST_OWNERS: Final = 10


@dataclass(frozen=True, slots=True)
class Launched:
    """What became of one launch record."""

    record: LaunchRecord | None
    """None: nothing was bought, and nothing will be."""
    instances: tuple[Instance, ...] = ()
    setback: Setback | None = None


def make_record(
    policy: AutoscalingPolicy, order: PurchaseOrder, number: int, offers: PolicyOffers, *,
    names: Mapping[str, str], now_s: float,
) -> LaunchRecord:  # fmt: skip
    """Return the record of an order. Its id is the same whichever process makes it for this number."""
    offer = order.offer
    found = offers.find(offer)
    digest = hashlib.sha256(f"{policy.metadata.uid}/{number}/{offer}".encode()).hexdigest()[:10]
    request_id = f"kgwe-{number}-{digest}"
    return LaunchRecord(
        requestID=request_id,
        pool=offer.pool,
        instanceType=offer.instance_type,
        zone=offer.zone,
        capacityType=offer.capacity_type,
        count=order.count,
        time=timestamp.format_time(now_s),
        atomic=order.atomic,
        placementGroup=request_id if order.is_near or (order.atomic and found and found.pool.nodesPerLeaf) else "",
        promised=dict(found.promised) if found is not None else {},
        owners=tuple(names.get(owner, owner) for owner in order.owners[:_MOST_OWNERS]),
    )


def make_request(policy: AutoscalingPolicy, record: LaunchRecord, offers: PolicyOffers) -> LaunchRequest:
    """Return what the cloud is asked for. The same record gives the same request after a restart."""
    pool = next((each for each in policy.spec.nodePools if each.name == record.pool), None)
    found = next((each for each in offers.offers if each.offer.pool == record.pool), None)
    labels = {
        **(pool.labels if pool is not None else {}),
        marks.OWNER_LABEL: policy.metadata.name,
        marks.POOL_LABEL: record.pool,
        marks.REQUEST_LABEL: record.requestID,
        "gpu-autoscaler.io/capacity-type": record.capacityType,
    }
    return LaunchRequest(
        request_id=record.requestID,
        pool=record.pool,
        instance_type=record.instanceType,
        zone=record.zone,
        capacity_type=CapacityType(record.capacityType),
        count=record.count,
        atomic=record.atomic,
        placement_group=record.placementGroup,
        labels=labels,
        taints=found.template.taints if found is not None else (),
        template=pool.template if pool is not None else "",
    )


def list_missing_labels(policy: AutoscalingPolicy, bought: BoughtNode) -> dict[str, str]:
    """Return labels that a node of the policy should have and joined without, as where a cloud cannot set them."""
    if bought.node is None or marks.OWNER_LABEL in bought.node.metadata.labels:
        return {}
    pool = next((each for each in policy.spec.nodePools if each.name == bought.offer.pool), None)
    return {
        **(pool.labels if pool is not None else {}),
        marks.OWNER_LABEL: policy.metadata.name,
        marks.POOL_LABEL: bought.offer.pool,
        marks.REQUEST_LABEL: bought.request_id,
        "gpu-autoscaler.io/capacity-type": bought.offer.capacity_type,
    }


async def send_launch(
    provider: Provider, policy: AutoscalingPolicy, record: LaunchRecord, offers: PolicyOffers, now_s: float
) -> Launched:
    """Ask the cloud. A record whose outcome is unknown stays, and is sent again with the same id."""
    result = await provider.launch(make_request(policy, record, offers))
    instances = tuple(each for each in result.instances if each.state is not InstanceState.GONE)
    offer = Offer(record.pool, record.instanceType, record.zone, record.capacityType)
    record = msgspec.structs.replace(record, attempts=record.attempts + 1)
    setback = _make_setback(result, offer, policy, now_s)
    if result.error is not None and result.error.is_retryable and not instances:
        return Launched(record, (), setback)
    if record.atomic and len(instances) < record.count:
        # Half a gang is of no use to anyone. A provider should have returned it already.
        if instances:
            await provider.terminate([each.provider_id for each in instances])
        missing = setback or Setback(
            offer, LaunchErrorKind.NO_CAPACITY, f"{len(instances)} of {record.count} nodes of a gang", now_s,
            generation=policy.metadata.generation,
        )  # fmt: skip
        return Launched(None, (), missing)
    if not instances:
        # Without a pause the next round would ask again at once, for ever.
        silent = Setback(
            offer, LaunchErrorKind.NO_CAPACITY, "the provider returned neither instances nor an error", now_s,
            generation=policy.metadata.generation,
        )  # fmt: skip
        return Launched(None, (), setback or silent)
    return Launched(msgspec.structs.replace(record, sent=True, count=len(instances)), instances, setback)


def _make_setback(result: LaunchResult, offer: Offer, policy: AutoscalingPolicy, now_s: float) -> Setback | None:
    error = result.error
    if error is None:
        return None
    return Setback(
        offer, str(error.kind), str(error), now_s,
        generation=policy.metadata.generation, least_s=error.retry_after_s or 0.0,
    )  # fmt: skip


def list_open(records: Iterable[LaunchRecord], census: Census) -> tuple[LaunchRecord, ...]:
    """Return records that still matter: some of their nodes are neither complete nor gone."""
    open_ids = {each.request_id for each in census.nodes if each.is_in_flight}
    return tuple(each for each in records if not each.sent or each.requestID in open_ids)


def settle_unwanted(
    policy: AutoscalingPolicy, records: Iterable[LaunchRecord], census: Census, since: dict[str, float], *,
    now_s: float, wait_s: float,
) -> tuple[LaunchRecord, ...]:  # fmt: skip
    """Return the records without launches that were not sent, or not answered, and whose pool the policy has no more.

    They are never sent again. What the cloud bought for one shows in its list within `wait_s`; then the record counts
    as sent. `since`: request -> when its pool was missing first.
    """
    pools = {pool.name for pool in policy.spec.nodePools}
    listed = Counter(each.request_id for each in census.nodes if each.instance is not None)
    found, waiting = [], set()
    for record in records:
        count = listed[record.requestID]
        if record.sent or record.pool in pools:
            found.append(record)
        elif count:
            found.append(msgspec.structs.replace(record, sent=True, count=count))
        elif now_s - min(since.setdefault(record.requestID, now_s), now_s) < wait_s:
            waiting.add(record.requestID)
            found.append(record)
        else:
            log.info("launch_dropped", policy=policy.metadata.name, request=record.requestID, pool=record.pool)
    for gone in since.keys() - waiting:
        del since[gone]
    return tuple(found)


def without_dropped(census: Census, records: Iterable[LaunchRecord]) -> Census:
    """Return the census without nodes that were only requested and whose record is dropped."""
    kept = {each.requestID for each in records}
    nodes = tuple(each for each in census.nodes if each.instance is not None or each.request_id in kept)
    return replace(census, nodes=nodes)


def learn(memory: LaunchMemory, launched: Launched) -> LaunchMemory:
    """Return the memory after a launch."""
    if launched.setback is not None:
        return memory.record(launched.setback)
    record = launched.record
    if record is None:
        return memory
    return memory.forget_success(Offer(record.pool, record.instanceType, record.zone, record.capacityType))
