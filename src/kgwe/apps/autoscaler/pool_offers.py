"""What a policy offers to buy: every pool, instance type, zone and capacity type, with its template and price."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.costing.money import parse_dollars
from kgwe.costing.prices.book import Capacity, NodeKind, Quote
from kgwe.kube.api.kgwe.autoscalingpolicy import CapacityType
from kgwe.model.gpu import catalog
from kgwe.model.units import quantity
from kgwe.placement.fleet.taints import Taint
from kgwe.scaling.launch_memory import Offer
from kgwe.scaling.templates import PoolDescription, build_template, list_promised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kgwe.costing.prices.book import PriceBook
    from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicy, NodePool
    from kgwe.placement.fleet.node import Node

    #: kind of node -> micro-dollars per hour; None: no price is known
    QuotePrice = Callable[[NodeKind], int | None]

#: Micro-dollars per GPU and hour of a node without a price, so that plans prefer nodes with one.
_UNKNOWN_PRICE: Final = 20_000_000
_SPOT_OF_UNKNOWN: Final = 0.6
_INSTANCE_TYPES: Final = ("node.kubernetes.io/instance-type", "gpu-autoscaler.io/instance-type")
#: Zones of AWS, GCP and Azure, with their region as the first group.
_ZONES: Final = (re.compile(r"(.*\d)[a-z]"), re.compile(r"(.*\d)-[a-z]"), re.compile(r"([a-z]+)-\d"))


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """An offer with a node as it will be."""

    offer: Offer
    pool: NodePool
    template: Node
    promised: Mapping[str, int]
    on_demand_micro: int
    """What the node costs on demand, for savings."""
    is_priced: bool = True

    @property
    def price_micro(self) -> int:
        return self.template.price_micro_per_hour or 0


@dataclass(frozen=True, slots=True)
class PolicyOffers:
    """The offers of a policy, and what is wrong with it."""

    offers: tuple[PoolOffer, ...]
    problems: tuple[str, ...]

    def find(self, offer: Offer) -> PoolOffer | None:
        return next((each for each in self.offers if each.offer == offer), None)


def read_offers(policy: AutoscalingPolicy, book: PriceBook, fleet: Iterable[Node], now_s: float) -> PolicyOffers:
    """Return what can be bought. `fleet`: existing nodes, from which templates are learned."""
    known = _index_nodes(fleet)

    def quote(kind: NodeKind) -> int | None:
        found = book.quote(kind, int(now_s))
        return found.micros_per_hour if isinstance(found, Quote) else None

    offers, problems = [], []
    for pool in policy.spec.nodePools:
        try:
            description = _describe_pool(pool)
        except errors.Permanent as exc:
            problems.append(str(exc))
            continue
        if not pool.instanceTypes:
            problems.append(f"node pool {pool.name} names no instanceTypes")
        for offer in _list_offers(policy, pool):
            try:
                offers.append(_make_offer(offer, pool, description, known, quote))
            except errors.Permanent as exc:
                problems.append(str(exc))
    return PolicyOffers(tuple(offers), tuple(dict.fromkeys(problems)))


def _index_nodes(fleet: Iterable[Node]) -> dict[tuple[str, str], Node]:
    """(pool, instance type) -> a node to learn from: the one with the most GPUs in service."""
    found: dict[tuple[str, str], Node] = {}
    for node in fleet:
        kind = next((node.labels[key] for key in _INSTANCE_TYPES if node.labels.get(key)), "")
        key = node.labels.get("gpu-autoscaler.io/node-pool", ""), kind
        best = found.get(key)
        if best is None or (node.ready, node.usable.bit_count()) > (best.ready, best.usable.bit_count()):
            found[key] = node
    return found


def _describe_pool(pool: NodePool) -> PoolDescription:
    try:
        cpu = quantity.parse_milli(pool.cpu) if pool.cpu else 0
        memory = quantity.parse_bytes(pool.memory) if pool.memory else 0
    except quantity.BadQuantity as exc:
        raise errors.Permanent(f"node pool {pool.name}: {exc}") from exc
    return PoolDescription(
        gpu_type=pool.gpuType,
        gpus=pool.gpusPerNode or 0,
        cpu_milli=cpu,
        memory_bytes=memory,
        shares=pool.sharesPerGPU,
        mig_layout=pool.migLayout,
        labels=pool.labels,
        taints=tuple(Taint(each.key, each.value, each.effect) for each in pool.taints),
    )


def _list_offers(policy: AutoscalingPolicy, pool: NodePool) -> Iterator[Offer]:
    kinds = [pool.capacityType] if pool.capacityType else [CapacityType.SPOT, CapacityType.ON_DEMAND]
    if not policy.spec.enableSpotInstances:
        kinds = [each for each in kinds if each != CapacityType.SPOT]
    for kind in kinds:
        for instance_type in pool.instanceTypes:
            for zone in pool.availabilityZones or ("",):
                yield Offer(pool.name, instance_type, zone, str(kind))


def _make_offer(
    offer: Offer,
    pool: NodePool,
    description: PoolDescription,
    known: Mapping[tuple[str, str], Node],
    quote: QuotePrice,
) -> PoolOffer:
    learned = known.get((offer.pool, offer.instance_type))
    if learned is None:
        # A node of another pool tells the hardware, not how this pool is configured.
        others = (node for (_, kind), node in known.items() if kind == offer.instance_type)
        learned = next((node for node in others if not node.cut and not node.shares_per_gpu), None)
    template = build_template(offer, description, learned, 0)
    model, gpus = _find_model(template.shape.model), template.shape.gpu_count
    price, on_demand, is_priced = _find_prices(offer, pool, model, gpus, quote)
    template = build_template(offer, description, learned, price)
    return PoolOffer(offer, pool, template, list_promised(template), on_demand, is_priced)


def _find_prices(offer: Offer, pool: NodePool, model: str, gpus: int, quote: QuotePrice) -> tuple[int, int, bool]:
    """Return the price, the price on demand, and whether it is known. A reservation is paid already."""
    quotes = {}
    for capacity in (Capacity.ON_DEMAND, Capacity.SPOT):
        kind = NodeKind(offer.instance_type, region_of(offer.zone), offer.zone, capacity, model, gpus)
        found = quote(kind)
        quotes[capacity] = quote(replace(kind, region="", zone="")) if found is None else found
    on_demand, spot = quotes[Capacity.ON_DEMAND], quotes[Capacity.SPOT]
    if offer.capacity_type == CapacityType.RESERVED:
        return 0, on_demand or 0, True
    if pool.pricePerHour:
        price = parse_dollars(pool.pricePerHour)
        return price, max(on_demand or price, price), True
    fallback = on_demand if on_demand is not None else _UNKNOWN_PRICE * gpus
    if offer.capacity_type == CapacityType.SPOT:
        known = spot is not None
        return (spot if spot is not None else int(fallback * _SPOT_OF_UNKNOWN)), fallback, known
    return fallback, fallback, on_demand is not None


def region_of(zone: str) -> str:
    """Return the region of a zone, by the names of the three clouds: `us-east-1a`, `us-central1-a`, `eastus-1`."""
    matches = (pattern.fullmatch(zone) for pattern in _ZONES)
    return next((match[1] for match in matches if match), zone)


def _find_model(label: str) -> str:
    try:
        return catalog.find_model(label).name
    except errors.Permanent:
        return label
