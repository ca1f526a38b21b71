"""Node pools, pods and gangs for tests of purchases and removals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.support.machines import reference

from kgwe.model.gpu import catalog, mig
from kgwe.placement.fleet.node import Gpus, Node, Request, Shape, SpotPolicy
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.planning.ask import Ask, TopologyRequest
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.scaling.purchase.pools import NodePool, PurchasePlan

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

GIB = 1 << 30
DOLLAR = 1_000_000
A100 = catalog.find_model("A100-SXM4-80GB")
assert A100.geometry is not None
CUT = tuple(mig.parse_placement(A100.geometry, text) for text in ("3g.40gb@0", "2g.20gb@4", "1g.10gb@6"))
_SHAPES: dict[tuple[int, str], Shape] = {}


def shape(gpus: int, model: str = A100.label) -> Shape:
    key = (gpus, model)
    if key not in _SHAPES:
        geometry = A100.geometry if model == A100.label else None
        _SHAPES[key] = Shape(reference.nvswitch(gpus), model, A100.memory_mib, str(A100.architecture), geometry)
    return _SHAPES[key]


def pool(name: str, gpus: int, dollars: float, **changes: Any) -> NodePool:
    """Return a pool of nodes with 8 CPUs and 64 GiB per GPU."""
    limits = {key: changes.pop(key) for key in ("limit", "leaf_nodes") if key in changes}
    model = changes.pop("model", A100.label)
    template = Node(
        name=name,
        shape=shape(gpus, model),
        cpu_milli=changes.pop("cpu_milli", 8000 * gpus),
        memory_bytes=changes.pop("memory_bytes", 64 * GIB * gpus),
        price_micro_per_hour=round(dollars * DOLLAR),
        **changes,
    )
    return NodePool(name, template, **limits)


def ask(owner: str, gpus: int | Gpus = 1, *, pods: int = 1, required: str = "", **changes: Any) -> Ask:
    wanted = Gpus(count=gpus) if isinstance(gpus, int) else gpus
    priority = changes.pop("priority", 0)
    request = Request(wanted, changes.pop("cpu_milli", 1000), changes.pop("memory_bytes", GIB), **changes)
    return Ask(owner, request, pods=pods, nearness=TopologyRequest(required=required), priority=priority)


def verify(plan: PurchasePlan, asks: Sequence[Ask], pools: Sequence[NodePool], in_flight: Sequence[Node] = ()) -> None:
    """Check that the scheduler's fit code accepts every seat, that gangs are whole, and that limits hold."""
    nodes = [*in_flight, *(node for _, node in plan.nodes)]
    unmet = {each.owner for each in plan.unmet}
    snapshot = Snapshot.from_nodes(nodes)
    fitter = Fitter(snapshot)
    for each in asks:
        seats = plan.seats.get(each.owner, ())
        assert (each.owner in unmet) == (not seats)
        assert len(seats) in {0, each.pods}
        for seat in seats:
            number = snapshot.index[seat.node]
            assert fitter.check_nodes(each.request, np.array([number]))[0] == FitStatus.FITS
            snapshot.commit(replace(seat.grant, node=number))
    limits = {each.name: each.limit for each in pools}
    assert all(count <= limits[name] for name, count in plan.count_by_pool().items())
    used = {seat.node for seats in plan.seats.values() for seat in seats}
    assert all(node.name in used for _, node in plan.nodes), "a node was bought that no pod needs"


_KINDS = (
    Gpus(count=1),
    Gpus(count=2),
    Gpus(count=3),
    Gpus(count=4),
    Gpus(count=8),
    Gpus(milli=250),
    Gpus(milli=500),
    Gpus(profile="1g.10gb", slices=1),
    Gpus(profile="3g.40gb", slices=1),
    Gpus(),
)


def draw_pool(random_: random.Random, number: int) -> NodePool:
    gpus = random_.choice((1, 2, 4, 8))
    cut = dict.fromkeys(range(gpus), CUT) if random_.random() < 0.15 else {}
    dollars = gpus * random_.uniform(1.0, 3.0) if random_.random() < 0.95 else 0.0
    return pool(
        f"p{number}",
        gpus,
        dollars,
        cpu_milli=1000 * random_.choice((4, 8, 12)) * gpus,
        model=random_.choice((A100.label, A100.label, "NVIDIA-L4")) if not cut else A100.label,
        limit=random_.choice((0, 1, 3, 1000)),
        leaf_nodes=random_.choice((0, 2, 16)),
        spot=random_.random() < 0.3,
        cut=cut,
        shares_per_gpu=random_.choice((None, None, 0)),
    )


def draw_asks(random_: random.Random, most: int, *, gangs: bool = True) -> list[Ask]:
    asks = []
    classes = [
        (random_.choice(_KINDS), random_.choice((500, 2000, 8000)), random_.choice(list(SpotPolicy)))
        for _ in range(random_.randint(1, 4))
    ]
    for number in range(random_.randint(1, most)):
        gpus, cpu, spot = random_.choice(classes)
        is_gang = gangs and random_.random() < 0.2 and gpus.count > 0
        pods = random_.randint(2, 6) if is_gang else 1
        required = "leaf" if is_gang and random_.random() < 0.5 else ""
        model = "L4" if random_.random() < 0.1 else ""
        made = ask(f"a{number}", gpus, pods=pods, required=required, cpu_milli=cpu, spot=spot, model=model)
        asks.append(made)
    return asks
