"""A fleet small enough to reason about: 4-card nodes, two to a leaf, and jobs for it."""

from __future__ import annotations

from typing import Any

from tests.support.machines import reference

from kgwe.model.gpu import catalog, mig
from kgwe.placement.fleet.node import Gpus, Node, Request, Shape
from kgwe.sim.traces.workload import Job

LEAF = "fabric.topograph.run/tier-0"
CARDS = 4
MODEL = catalog.find_model("A100-SXM4-80GB")
assert MODEL.geometry is not None
GEOMETRY = MODEL.geometry
SHAPE = Shape(reference.nvswitch(CARDS), MODEL.label, MODEL.memory_mib, str(MODEL.architecture), GEOMETRY)
CUT = tuple(mig.parse_placement(GEOMETRY, text) for text in ("3g.40gb@0", "2g.20gb@4", "1g.10gb@6"))


def node(number: int, *, cut: int = 0, spot: bool = False, price: int | None = 8_000_000, **changes: Any) -> Node:
    """Node `number`; its first `cut` cards are cut by MIG."""
    return Node(
        name=f"n{number}",
        shape=SHAPE,
        cpu_milli=changes.pop("cpu_milli", 64_000),
        memory_bytes=changes.pop("memory_bytes", 512 << 30),
        labels={LEAF: f"leaf-{number // 2}"},
        cut=dict.fromkeys(range(cut), CUT),
        spot=spot,
        price_micro_per_hour=price,
        **changes,
    )


def nodes(count: int = 4) -> list[Node]:
    return [node(number) for number in range(count)]


def job(name: str, arrival_s: float = 0.0, duration_s: float = 100.0, *, gpus: Gpus | int = 1, **changes: Any) -> Job:
    wanted = Gpus(count=gpus) if isinstance(gpus, int) else gpus
    return Job(name, arrival_s, duration_s, Request(wanted, changes.pop("cpu_milli", 1000)), **changes)
