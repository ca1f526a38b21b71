"""The status of an AutoscalingPolicy: what it says, and how it is written so that nothing is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.apps.autoscaler.spot.advisor import WORDS
from kgwe.apps.autoscaler.spot.observer import SpotObserver
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.kgwe.autoscalingpolicy import (
    AutoscalingPolicyStatus,
    BlockedOffer,
    CapacityChoice,
    KeptNode,
    LaunchRecord,
    PlannedNodes,
    ScaleAction,
    StageCount,
    UnmetDemand,
)
from kgwe.kube.api.meta import Condition
from kgwe.scaling.launch_memory import LaunchMemory, Offer, Setback
from kgwe.scaling.lifecycle import EXISTING, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.apps.autoscaler.census import Census
    from kgwe.apps.autoscaler.pool_offers import PolicyOffers
    from kgwe.cloud.provider import Instance
    from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicy
    from kgwe.kube.client.client import KubeClient
    from kgwe.scaling.purchase.orders import PurchaseOrder
    from kgwe.scaling.purchase.pools import Unmet
    from kgwe.scaling.removal import Keep
    from kgwe.scaling.spot.choice import Verdict

_MICROS: Final = 1_000_000
_HOURS_PER_MONTH: Final = 730
_MOST_ACTIONS: Final = 32
_MOST_LISTED: Final = 32
_MOST_TEXT: Final = 1024
_MOST_NAMES: Final = 5
_SCALED_UP: Final = frozenset({"ScaleUp"})
_SCALED_DOWN: Final = frozenset({"ScaleDown", "Replace"})


@dataclass(slots=True)
class Findings:
    """What one round found and did for one policy."""

    census: Census
    offers: PolicyOffers
    records: tuple[LaunchRecord, ...] = ()
    sequence: int = 0
    memory: LaunchMemory = field(default_factory=LaunchMemory)
    orders: tuple[PurchaseOrder, ...] = ()
    """What the plan buys, bought or not."""
    unmet: tuple[Unmet, ...] = ()
    kept: Mapping[str, tuple[Keep | str, str]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    actions: list[ScaleAction] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What the cloud did not do."""
    pending_pods: int = 0
    use: float | None = None
    spot: SpotObserver = field(default_factory=SpotObserver)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """Owner -> spot, wait or on-demand, and why."""
    note: str = ""
    """Why nothing is done, if so."""


def restore_memory(policies: Iterable[AutoscalingPolicy]) -> LaunchMemory:
    """Return what the status of policies says about refused offers."""
    return LaunchMemory.restore(
        Setback(
            Offer(each.pool, each.instanceType, each.zone, each.capacityType),
            each.kind,
            each.message,
            timestamp.epoch_seconds(each.time),
            each.repeats,
            each.generation,
        )
        for policy in policies
        for each in policy.status.blocked
    )


def build_status(policy: AutoscalingPolicy, found: Findings, now_s: float) -> AutoscalingPolicyStatus:
    """Return the status after a round."""
    old, now = policy.status, timestamp.format_time(now_s)
    census = found.census
    existing = [each for each in census.nodes if each.stage in EXISTING]
    by_capacity = Counter(each.offer.capacity_type for each in existing)
    leaving = sum(each.stage in {Stage.DRAINING, Stage.REMOVING, Stage.BROKEN} for each in existing)
    cost, saved = count_cost(census, found.offers)
    ups = [each for each in found.actions if each.action in _SCALED_UP]
    downs = [each for each in found.actions if each.action in _SCALED_DOWN]
    last = found.actions[-1] if found.actions else None
    return AutoscalingPolicyStatus(
        currentNodes=sum(each.node is not None for each in existing),
        desiredNodes=len(existing) - leaving,
        spotNodes=by_capacity["spot"],
        onDemandNodes=by_capacity["on-demand"],
        reservedNodes=by_capacity["reserved"],
        averageGPUUtilization=found.use,
        pendingPods=found.pending_pods,
        lastScaleUpTime=now if ups else old.lastScaleUpTime,
        lastScaleDownTime=now if downs else old.lastScaleDownTime,
        lastScaleAction=f"{last.action} {last.pool}".strip() if last is not None else old.lastScaleAction,
        lastScaleReason=last.reason if last is not None else old.lastScaleReason,
        spotInterruptions=found.spot.count_interruptions(),
        estimatedMonthlyCost=format_dollars(cost * _HOURS_PER_MONTH),
        estimatedMonthlySavings=format_dollars(saved * _HOURS_PER_MONTH),
        predictiveScaling=old.predictiveScaling,
        stages=tuple(StageCount(stage, count) for stage, count in sorted(census.count_stages().items())),
        sequence=found.sequence,
        launches=found.records,
        plan=tuple(_list_plan(found)),
        unmet=tuple(
            UnmetDemand(found.names.get(each.owner, each.owner), each.reason, each.message[:_MOST_TEXT])
            for each in found.unmet[:_MOST_LISTED]
        ),
        blocked=tuple(_list_blocked(found.memory, policy, now_s)),
        choices=tuple(
            CapacityChoice(found.names.get(owner, owner), WORDS[each.choice], each.reason, each.message[:_MOST_TEXT])
            for owner, each in list(found.verdicts.items())[:_MOST_LISTED]
        ),
        observedSpot=found.spot.export(frozenset(pool.name for pool in policy.spec.nodePools), now_s),
        interruptions=found.spot.interruptions,
        kept=tuple(
            KeptNode(name, str(reason), message[:_MOST_TEXT])
            for name, (reason, message) in sorted(found.kept.items())[:_MOST_LISTED]
        ),
        orphans=tuple(sorted(each.provider_id for each in (*census.orphans, *census.strays))[:_MOST_LISTED]),
        actions=(*reversed(found.actions), *old.actions)[:_MOST_ACTIONS],
        observedGeneration=policy.metadata.generation,
        conditions=_build_conditions(policy, found, now),
    )


def count_cost(census: Census, offers: PolicyOffers) -> tuple[int, int]:
    """Return the cost of an hour in micro-dollars, and what is saved against all on demand."""
    cost = saved = 0
    for each in census.nodes:
        offer = offers.find(each.offer)
        if each.stage in EXISTING and offer is not None:
            cost += offer.price_micro
            saved += max(offer.on_demand_micro - offer.price_micro, 0)
    return cost, saved


def format_dollars(micros: int) -> str:
    return f"{micros / _MICROS:.2f}"


def _list_plan(found: Findings) -> list[PlannedNodes]:
    listed = []
    for order in found.orders[:_MOST_LISTED]:
        offer, known = order.offer, found.offers.find(order.offer)
        names = [found.names.get(owner, owner) for owner in order.owners]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""  # noqa: PLR2004 - enough to recognize
        listed.append(
            PlannedNodes(
                offer.pool,
                offer.instance_type,
                offer.zone,
                offer.capacity_type,
                order.count,
                format_dollars(known.price_micro) if known is not None else "",
                f"{', '.join(names[:3])}{more}",
            )
        )
    return listed


def _list_blocked(memory: LaunchMemory, policy: AutoscalingPolicy, now_s: float) -> list[BlockedOffer]:
    pools = {pool.name for pool in policy.spec.nodePools}
    return [
        BlockedOffer(
            each.offer.pool,
            each.offer.instance_type,
            each.offer.zone,
            each.offer.capacity_type,
            each.kind,
            timestamp.format_time(each.at_s),
            timestamp.format_time(each.until_s),
            each.repeats,
            each.generation,
            each.message[:_MOST_TEXT],
        )
        for each in memory.list_current(now_s)
        if each.offer.pool in pools
    ][:_MOST_LISTED]


def _build_conditions(policy: AutoscalingPolicy, found: Findings, now: str) -> tuple[Condition, ...]:
    if found.problems:
        ready = Condition("Ready", "False", "InvalidPolicy", "; ".join(found.problems)[:_MOST_TEXT])
    elif found.failures:
        ready = Condition("Ready", "False", "CloudFails", "; ".join(found.failures)[:_MOST_TEXT])
    else:
        ready = Condition("Ready", "True", "Acting", found.note[:_MOST_TEXT])
    owned = _describe_orphans(policy, found.census)
    return set_conditions(policy.status.conditions, (ready, owned), policy.metadata.generation, now)


def _describe_orphans(policy: AutoscalingPolicy, census: Census) -> Condition:
    orphans, strays = census.orphans, census.strays
    said = [f"{len(orphans)} instances that no purchase explains have not joined"] if orphans else []
    if strays:
        said.append(describe_strays(policy, strays))
    reason = "PoolRemoved" if strays else "InstancesWithoutNode" if orphans else "None"
    return Condition("OrphansFound", "True" if said else "False", reason, "; ".join(said)[:_MOST_TEXT])


def describe_strays(policy: AutoscalingPolicy, strays: Sequence[Instance]) -> str:
    """Return what becomes of instances whose pool the policy no longer has."""
    pools = ", ".join(sorted({each.pool for each in strays})[:_MOST_NAMES])
    what = "they are drained and returned when they are idle"
    if not policy.spec.scaleDown.enabled:
        what = "they stay, as scaleDown.enabled is false"
    return f"{len(strays)} instances are of pools that nodePools no longer has ({pools}): {what}"


def set_conditions(
    before: Sequence[Condition], new: Sequence[Condition], generation: int, now: str
) -> tuple[Condition, ...]:
    """Return the conditions with new ones; the time of a change is kept while the status is the same."""
    old = {each.type: each for each in before}
    timed = []
    for each in new:
        same = old.get(each.type)
        since = same.lastTransitionTime if same is not None and same.status == each.status else None
        timed.append(msgspec.structs.replace(each, lastTransitionTime=since or now, observedGeneration=generation))
    return (*(each for each in before if each.type not in {one.type for one in new}), *timed)


async def write_status(
    client: KubeClient, policy: AutoscalingPolicy, status: AutoscalingPolicyStatus
) -> AutoscalingPolicy:
    """Replace the status of this version of the policy; Conflict when it has changed since."""
    if status == policy.status:
        return policy
    told: dict[str, Any] = msgspec.to_builtins(status)
    # A merge patch keeps what it does not name.
    whole = {each.encode_name: told.get(each.encode_name) for each in msgspec.structs.fields(type(status))}
    body = {"metadata": {"resourceVersion": policy.metadata.resourceVersion}, "status": whole}
    return await client.patch(resources.AUTOSCALING_POLICY, policy.metadata.name, body, subresource="status")
