"""Replicas of inference services on spot nodes: each new one goes to another zone or type, as `scaling.spot` says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kgwe.apps.autoscaler.spot.markets import SPOT, limit_ask
from kgwe.cluster.workload import metadata_keys
from kgwe.placement.fleet.node import SpotPolicy
from kgwe.scaling.spot.choice import Verdict
from kgwe.scaling.spot.deadline import Choice
from kgwe.scaling.spot.serving import Domains, Service, plan_serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kgwe.apps.autoscaler.pool_offers import PoolOffer
    from kgwe.apps.autoscaler.spot.markets import Markets
    from kgwe.cluster.offline import View
    from kgwe.kube.api import core
    from kgwe.placement.planning.ask import Ask
    from kgwe.scaling.launch_memory import Offer

#: A domain is avoided for so long after nodes were taken back there.
AVOID_S: Final = 4 * 3600.0
_ZONE: Final = "topology.kubernetes.io/zone"
_TYPE: Final = "node.kubernetes.io/instance-type"


def place_replicas(
    view: View, waiting: Sequence[Ask], markets: Markets, coming: int, now_s: float, *, is_refused: bool
) -> Iterator[tuple[Ask, Verdict, Ask | None]]:
    """Choose for each replica of one service that waits: the ask, why, and what is bought; None: it waits for spot.

    `coming`: replicas whose nodes are in flight. `is_refused`: the limits of pools leave no more spot.
    """
    service = describe_service(view, waiting[0].service, coming)
    offers = {} if is_refused else _list_domains(markets, waiting[0])
    lost = {name: markets.find_lost_s(each.offer) for name, each in offers.items()}
    avoided = frozenset(name for name, at_s in lost.items() if _is_recent(at_s, now_s))
    plan = plan_serving(service, Domains(usable=tuple(offers), avoided=avoided))
    for number, ask in enumerate(sorted(waiting, key=lambda each: each.sort_key())):
        if number < len(plan.spot):
            name = plan.spot[number]
            verdict = Verdict(Choice.SPOT, "SpreadOverSpot", f"spot in {name}, away from other replicas")
            yield ask, verdict, _pin(limit_ask(ask, SpotPolicy.REQUIRE), offers[name])
        elif number < len(plan.spot) + plan.on_demand:
            text = f"the provider has no spot nodes, and fewer than {service.wanted} replicas have a node"
            yield ask, Verdict(Choice.ON_DEMAND, "SpotAway", text), limit_ask(ask, SpotPolicy.AVOID)
        else:
            yield ask, Verdict(Choice.WAIT, "WaitsForSpot", "an extra replica waits for spot nodes"), None


def describe_service(view: View, uid: str, coming: int = 0) -> Service:
    """Return a service as its runs and pods show it."""
    group = view.state.replicas.find(uid)
    if group is None:
        return Service(wanted=0, extra=0, spot={})
    terms, desired = group.parent.spot_terms, group.parent.desired
    extra = min(terms.extra, desired) if terms is not None else 0
    spot: Counter[str] = Counter()
    others = ready = 0
    for each in view.state.replicas.list_views(group):
        nodes = [view.fleet.node(seat.node) for seat in each.run.seats] if each.run is not None else []
        ready += each.is_ready
        if nodes and all(node is not None and node.spot for node in nodes):
            labels = nodes[0].labels if nodes[0] is not None else {}
            spot[_name_domain(labels.get(_ZONE, ""), labels.get(_TYPE, ""))] += 1
        elif nodes:
            others += 1
    return Service(wanted=desired - extra, extra=extra, spot=spot, on_demand=others + coming, ready=ready)


def find_return(
    view: View, nodes: Mapping[str, Sequence[core.Pod]], usable: Sequence[PoolOffer],
    lost: Mapping[Offer, float | None],
    now_s: float,
) -> str:  # fmt: skip
    """Return a node on which one replica runs on demand that can go back to spot now; empty: none.

    `nodes`: nodes that are not spot -> the pods that hold them. All pods of a node must be of one such replica.
    """
    domains = {
        _name_domain(each.offer.zone, each.offer.instance_type): each
        for each in usable
        if each.offer.capacity_type == SPOT
    }
    lately = (name for name, each in domains.items() if _is_recent(lost.get(each.offer), now_s))
    known = Domains(usable=tuple(domains), avoided=frozenset(lately))
    for node, pods in sorted(nodes.items()):
        runs = {run.meta.uid: run for pod in pods if (run := view.state.run_of(pod)) is not None}
        if len(runs) != 1 or any(view.state.run_of(pod) is None for pod in pods):
            continue
        (run,) = runs.values()
        owner = run.meta.labels.get(metadata_keys.UID_LABEL, "")
        group = view.state.replicas.find(owner)
        if group is None or group.parent.spot_terms is None or {seat.node for seat in run.seats} != {node}:
            continue
        if plan_serving(describe_service(view, group.parent.object_uid), known).to_spot:
            return node
    return ""


def _is_recent(at_s: float | None, now_s: float) -> bool:
    return at_s is not None and now_s - at_s < AVOID_S


def _list_domains(markets: Markets, ask: Ask) -> dict[str, PoolOffer]:
    """Zone and type -> the cheapest offer of it, the cheapest domain first."""
    fitting = [
        each for each in markets.list_fitting(ask) if each.offer.capacity_type == SPOT and markets.is_usable(each.offer)
    ]
    found: dict[str, PoolOffer] = {}
    for each in sorted(fitting, key=lambda one: (one.price_micro, str(one.offer))):
        found.setdefault(_name_domain(each.offer.zone, each.offer.instance_type), each)
    return found


def _name_domain(zone: str, instance_type: str) -> str:
    return "/".join(filter(None, (zone, instance_type)))


def _pin(ask: Ask, offer: PoolOffer) -> Ask:
    """Return the ask with the zone and type of an offer as a requirement of what is bought."""
    wanted = {_TYPE: offer.offer.instance_type} | ({_ZONE: offer.offer.zone} if offer.offer.zone else {})
    limits = ask.request.constraints
    selector = tuple(sorted(dict(limits.selector).items() | wanted.items()))
    constraints = replace(limits, selector=selector)
    gang = ask.gang.with_requests(constraints=constraints) if ask.gang is not None else None
    return replace(ask, request=replace(ask.request, constraints=constraints), gang=gang)
