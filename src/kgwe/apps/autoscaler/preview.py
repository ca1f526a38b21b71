"""What the autoscaler would do now, from one reading of the API: `kgwe scale plan` and `kgwe scale simulate`.

No provider is asked. Nodes of a policy are known by their label; purchases that are under way, by the policy's status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe.apps.autoscaler import marks, node_pods, policy_status
from kgwe.apps.autoscaler.census import CensusTaker
from kgwe.apps.autoscaler.demand import find_demand
from kgwe.apps.autoscaler.policy_status import Findings, build_status
from kgwe.apps.autoscaler.pool_offers import read_offers
from kgwe.apps.autoscaler.purchase import PurchaseRound
from kgwe.apps.autoscaler.removal import IdleClock, plan_scale_down
from kgwe.apps.autoscaler.spot.advisor import SpotAdvisor
from kgwe.apps.autoscaler.spot.observer import SpotObserver
from kgwe.cloud.provider import CapacityType, Instance, InstanceState
from kgwe.kube.api import timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kgwe.cluster.offline import View
    from kgwe.costing.prices.book import PriceBook
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicy, AutoscalingPolicyStatus

_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_ZONE = "topology.kubernetes.io/zone"
_CAPACITY = "gpu-autoscaler.io/capacity-type"


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be done for one policy: its status after a round that does nothing."""

    policy: AutoscalingPolicy
    status: AutoscalingPolicyStatus
    price_micro: int
    """Of everything the plan buys, per hour."""
    placed: frozenset[str]
    """Owners that start without a purchase."""


def preview_round(
    view: View,
    policies: Sequence[AutoscalingPolicy],
    nodes: Mapping[str, core.Node],
    book: PriceBook,
    now_s: float,
    *,
    at_once: bool = False,
) -> list[Preview]:
    """Plan for everything that waits. `at_once`: as if it had waited long enough, and a scheduler had refused it."""
    pods = node_pods.read_node_pods(view)
    found = []
    seated: set[str] = set()
    for policy in sorted(policies, key=lambda each: (each.metadata.creationTimestamp or "", each.metadata.name)):
        instances = tuple(_list_instances(policy, nodes.values()))
        census = CensusTaker().take(
            policy,
            instances,
            nodes,
            busy=pods.busy,
            now_s=now_s,
            settle_s=60.0,
            strays=frozenset(each.provider_id for each in instances),
        )
        masked = frozenset(each.name for each in census.nodes if each.node is not None and each.is_in_flight)
        timeout_s = 0.0 if at_once else policy.spec.pendingPodTimeoutSeconds
        demand = find_demand(view, masked, timeout_s, now_s, is_tried=at_once, without=frozenset(seated))
        offers = read_offers(policy, book, view.fleet.snapshot.nodes, now_s)
        memory = policy_status.restore_memory([policy])
        spot = SpotObserver.restore(policy.status)
        advisor = SpotAdvisor(view, spot.offers, now_s)
        planned = PurchaseRound(policy, offers, census, memory, now_s, advisor=advisor).plan(demand)
        seated |= planned.settled
        idle_s = IdleClock().observe([each.name for each in census.nodes], pods.busy, now_s)
        removals = plan_scale_down(policy, view, demand, census=census, pods=pods, idle_s=idle_s, uses={}, now_s=now_s)
        findings = Findings(
            census, offers, policy.status.launches, policy.status.sequence, memory, planned.orders, planned.unmet,
            removals.kept, demand.names, problems=list(offers.problems), pending_pods=demand.pending_pods,
            spot=spot, verdicts=planned.verdicts,
        )  # fmt: skip
        prices = {each.offer: each.price_micro for each in offers.offers}
        price = sum(prices.get(order.offer, 0) * order.count for order in planned.orders)
        status = build_status(policy, findings, now_s)
        found.append(Preview(policy, status, price, demand.placed))
    return found


def _list_instances(policy: AutoscalingPolicy, nodes: Iterable[core.Node]) -> Iterator[Instance]:
    """Instances of a policy, read from its nodes."""
    for node in nodes:
        labels = node.metadata.labels
        if labels.get(marks.OWNER_LABEL) != policy.metadata.name:
            continue
        kind = labels.get(_CAPACITY, "on-demand")
        yield Instance(
            provider_id=node.spec.providerID or node.metadata.name,
            request_id=labels.get(marks.REQUEST_LABEL, ""),
            pool=labels.get(marks.POOL_LABEL, ""),
            instance_type=labels.get(_INSTANCE_TYPE, ""),
            zone=labels.get(_ZONE, ""),
            capacity_type=CapacityType(kind) if kind in set(CapacityType) else CapacityType.ON_DEMAND,
            state=InstanceState.RUNNING,
            node_name=node.metadata.name,
            launched_at=timestamp.epoch_seconds(node.metadata.creationTimestamp or ""),
        )
