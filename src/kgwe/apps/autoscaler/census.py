"""Every node that a policy has bought or is buying: the cloud's list, the launch records and the Nodes, joined."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe.apps.autoscaler import marks
from kgwe.cloud.provider import InstanceState
from kgwe.kube.api import timestamp
from kgwe.kube.translate import podspec
from kgwe.scaling.launch_memory import Offer
from kgwe.scaling.lifecycle import EXISTING, IN_FLIGHT, NodeFacts, Stage, Times, find_stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kgwe.cloud.provider import Instance
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicy, LaunchRecord


#: A list that misses an instance for so many times the time it may lag misses it for good.
_SETTLED: Final = 2.0


@dataclass(frozen=True, slots=True)
class BoughtNode:
    """One node of a policy, in any stage of its life."""

    key: str
    """Provider id; for a node that the cloud does not list yet, the request and a number."""
    offer: Offer
    stage: Stage
    facts: NodeFacts
    request_id: str = ""
    instance: Instance | None = None
    node: core.Node | None = None
    record: LaunchRecord | None = None

    @property
    def name(self) -> str:
        """Name of its node if it has joined, else its key."""
        return self.node.metadata.name if self.node is not None else self.key

    @property
    def is_in_flight(self) -> bool:
        return self.stage in IN_FLIGHT

    @property
    def group(self) -> str:
        """The placement group it was bought in."""
        return self.record.placementGroup if self.record is not None else ""


@dataclass(frozen=True, slots=True)
class Census:
    """The nodes of one policy."""

    nodes: tuple[BoughtNode, ...] = ()
    orphans: tuple[Instance, ...] = ()
    """Instances of its pools that no launch record and no node explains."""
    strays: tuple[Instance, ...] = ()
    """Instances that it bought for pools that it no longer has. They are among its nodes."""
    lost: tuple[core.Node, ...] = ()
    """Nodes of the policy whose instance is gone."""

    @property
    def stray_keys(self) -> frozenset[str]:
        return frozenset(each.provider_id for each in self.strays)

    def list_in(self, *stages: Stage) -> list[BoughtNode]:
        return [each for each in self.nodes if each.stage in stages]

    def count_stages(self) -> Counter[Stage]:
        return Counter(each.stage for each in self.nodes)

    def count_pool(self, pool: str) -> int:
        return sum(each.offer.pool == pool for each in self.nodes if each.stage in EXISTING)

    def count_capacity(self, pool: str, capacity_type: str) -> int:
        return sum(
            (each.offer.pool, each.offer.capacity_type) == (pool, capacity_type)
            for each in self.nodes
            if each.stage in EXISTING
        )


@dataclass(slots=True)
class CensusTaker:
    """Joins what is known. It remembers only since when a node lacks GPUs, which a restart may forget."""

    _degraded: dict[str, float] = field(default_factory=dict)

    def take(
        self,
        policy: AutoscalingPolicy,
        instances: Sequence[Instance],
        nodes: Mapping[str, core.Node],
        *,
        busy: frozenset[str],
        now_s: float,
        settle_s: float,
        strays: frozenset[str] = frozenset(),
    ) -> Census:
        """Return the census of one policy. `busy`: nodes with pods other than those of DaemonSets.

        `strays`: instances that belong to it although it does not have their pool.
        """
        spec = policy.spec
        times = Times(
            join_s=spec.launch.joinTimeoutSeconds,
            gpu_ready_s=spec.launch.gpuReadyTimeoutSeconds,
            settle_s=settle_s,
            degraded_s=spec.launch.repairAfterSeconds,
        )
        pools = {pool.name: pool for pool in spec.nodePools}
        records = {each.requestID: each for each in policy.status.launches}
        own = {name: node for name, node in nodes.items() if _is_owned(node, policy)}
        # The cloud's list proves that an instance is ours, also where its node joined without labels.
        by_id = {node.spec.providerID: node for node in nodes.values() if node.spec.providerID}
        found, orphans, astray, used = [], [], [], set()
        listed: Counter[str] = Counter()
        # A list may name an instance twice.
        for instance in {each.provider_id: each for each in instances}.values():
            pool = pools.get(instance.pool)
            if instance.state is InstanceState.GONE or (pool is None and instance.provider_id not in strays):
                continue
            node = by_id.get(instance.provider_id) or own.get(instance.node_name or "")
            record = records.get(instance.request_id)
            listed[instance.request_id] += 1
            if pool is None:
                astray.append(instance)
            elif node is None and record is None:
                orphans.append(instance)
            if node is not None:
                used.add(node.metadata.name)
            startup = pool.startupTaints if pool is not None else ()
            facts = self._read_facts(instance, node, record, startup_taints=startup, busy=busy, now_s=now_s)
            found.append(
                BoughtNode(
                    instance.provider_id,
                    Offer(instance.pool, instance.instance_type, instance.zone, instance.capacity_type),
                    find_stage(facts, times),
                    facts,
                    instance.request_id,
                    instance,
                    node,
                    record,
                )
            )
        found += _list_unlisted(records.values(), listed, times, now_s)
        lost = tuple(
            node for name, node in own.items() if name not in used and _find_age_s(node, now_s) > _SETTLED * settle_s
        )
        return Census(tuple(found), tuple(orphans), tuple(astray), lost)

    def _read_facts(
        self,
        instance: Instance,
        node: core.Node | None,
        record: LaunchRecord | None,
        *,
        startup_taints: Iterable[str],
        busy: frozenset[str],
        now_s: float,
    ) -> NodeFacts:
        launched_s = instance.launched_at or (timestamp.epoch_seconds(record.time) if record is not None else now_s)
        is_removing = instance.state in {InstanceState.REMOVING, InstanceState.STOPPED}
        if node is None:
            return NodeFacts(age_s=max(now_s - launched_s, 0.0), listed=True, was_listed=True, removal=is_removing)
        promised = marks.read_promised(node) or (record.promised if record is not None else {})
        complete = is_complete(node, promised, startup_taints)
        was_complete = marks.READY_AT in node.metadata.annotations
        name = node.metadata.name
        if complete or not was_complete:
            self._degraded.pop(name, None)
            degraded_s = 0.0
        else:
            degraded_s = now_s - self._degraded.setdefault(name, now_s)
        return NodeFacts(
            age_s=max(now_s - launched_s, 0.0),
            listed=True,
            was_listed=True,
            has_node=True,
            complete=complete,
            was_complete=was_complete,
            degraded_s=max(degraded_s, 0.0),
            has_pods=name in busy,
            drain=marks.DRAIN in node.metadata.annotations,
            removal=is_removing or marks.REMOVAL in node.metadata.annotations,
        )


@dataclass(frozen=True, slots=True)
class Strays:
    """Instances of one provider that were bought for pools that no policy has any more."""

    by_policy: Mapping[str, frozenset[str]]
    """Policy that bought them -> their ids."""
    ownerless: frozenset[str]
    """Ids of those whose policy is gone."""


def find_strays(
    provider: str,
    instances: Iterable[Instance],
    policies: Sequence[AutoscalingPolicy],
    nodes: Mapping[str, core.Node],
) -> Strays:
    """Return the instances of a provider that are paid for although no policy has their pool.

    An instance that no request bought and whose node no policy owned, as of a group that others made, is none of them.
    """
    mine = [each for each in policies if each.spec.provider == provider]
    pools = {pool.name for each in mine for pool in each.spec.nodePools}
    names = {each.metadata.name for each in mine}
    buyers = {record.requestID: each.metadata.name for each in mine for record in each.status.launches}
    by_id = {node.spec.providerID: node for node in nodes.values() if node.spec.providerID}
    owned: dict[str, set[str]] = {}
    ownerless = set()
    for instance in instances:
        if instance.pool in pools or instance.state is InstanceState.GONE:
            continue
        node = by_id.get(instance.provider_id)
        label = node.metadata.labels.get(marks.OWNER_LABEL, "") if node is not None else ""
        policy = buyers.get(instance.request_id) or label
        if policy in names:
            owned.setdefault(policy, set()).add(instance.provider_id)
        elif instance.request_id or label:
            ownerless.add(instance.provider_id)
    return Strays({name: frozenset(ids) for name, ids in owned.items()}, frozenset(ownerless))


def is_complete(node: core.Node, promised: Mapping[str, int], startup_taints: Iterable[str]) -> bool:
    """Whether a node is Ready, has all its devices in service, and no start-up taint."""
    waits_for = set(startup_taints)
    if not podspec.is_ready(node) or any(taint.key in waits_for for taint in node.spec.taints):
        return False
    offered = podspec.read_allocatable(node)
    if not promised:
        return any(name.startswith("nvidia.com/") and count for name, count in offered.items())
    return all(offered.get(name, 0) >= count for name, count in promised.items())


def _find_age_s(node: core.Node, now_s: float) -> float:
    return now_s - timestamp.epoch_seconds(node.metadata.creationTimestamp or "")


def _is_owned(node: core.Node, policy: AutoscalingPolicy) -> bool:
    return node.metadata.labels.get(marks.OWNER_LABEL) == policy.metadata.name


def _list_unlisted(
    records: Iterable[LaunchRecord], listed: Counter[str], times: Times, now_s: float
) -> Iterator[BoughtNode]:
    """Nodes that were requested and that the cloud does not list yet. A request that was not sent stays."""
    for record in records:
        age_s = max(now_s - timestamp.epoch_seconds(record.time), 0.0) if record.sent else 0.0
        facts = NodeFacts(age_s=age_s)
        stage = find_stage(facts, times)
        if stage is Stage.GONE:
            continue
        offer = Offer(record.pool, record.instanceType, record.zone, record.capacityType)
        for number in range(listed[record.requestID], record.count):
            yield BoughtNode(f"{record.requestID}/{number}", offer, stage, facts, record.requestID, None, None, record)
