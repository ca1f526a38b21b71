"""Small clusters for tests, written as they are drawn: spines of leaves of nodes, each with its free cards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.machines import reference

from kgwe.model.network import domains
from kgwe.model.network.domains import Place, Speed, Tree
from kgwe.placement.fleet.node import Gpus, Node, Request, Shape
from kgwe.placement.fleet.snapshot import Grant, Snapshot
from kgwe.placement.planning.diagnosis import Diagnosis
from kgwe.placement.planning.gang_planner import GangPlan, GangPlanner, GangRequest
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEVELS = ("leaf", "spine")
H100 = Shape(reference.nvswitch(8), "H100-SXM5-80GB", 81_559, "Hopper")


@dataclass
class Racks:
    snapshot: Snapshot
    tree: Tree
    planner: GangPlanner
    held: dict[str, Grant]
    """Node -> what is taken there."""

    def place(self, gang: GangRequest) -> GangPlan:
        return placed(self.planner, gang)

    def refuse(self, gang: GangRequest, **more: Any) -> Diagnosis:
        refusal = self.planner.plan(gang, **more)
        assert isinstance(refusal, Refusal), refusal.describe()
        assert isinstance(refusal.detail, Diagnosis)
        return refusal.detail


def placed(planner: GangPlanner, gang: GangRequest) -> GangPlan:
    plan = planner.plan(gang)
    assert isinstance(plan, GangPlan), plan.message
    return plan


def cards(count: int, **more: Any) -> Request:
    return Request(Gpus(count=count), **more)


def racks(
    drawn: Mapping[str, Mapping[str, Sequence[int]]],
    *,
    shape: Shape = H100,
    nvlink: Mapping[str, str] | None = None,
    gb_per_s: float = 50.0,
    speeds: Mapping[str, Speed] | None = None,
    **node: Any,
) -> Racks:
    """{spine: {leaf: [free cards of its nodes]}}; node 2 of leaf a is a2. An empty name is one not known."""
    nodes: list[Node] = []
    places: list[Place] = []
    held: dict[str, Grant] = {}
    for spine, leaves in drawn.items():
        for leaf, free in leaves.items():
            for number, cards_free in enumerate(free, 1):
                name = f"{leaf}{number}"
                nodes.append(Node(name, shape, 64_000, 2**40, **node))
                places.append(Place(name, (leaf, spine), (nvlink or {}).get(name, ""), gb_per_s))
                taken = shape.gpu_count - cards_free
                if taken:
                    held[name] = Grant(len(nodes) - 1, gpus=((1 << taken) - 1) << cards_free)
    snapshot = Snapshot.from_nodes(nodes)
    snapshot.commit_all(list(held.values()))
    tree = domains.build_tree(places, LEVELS, speeds=speeds)
    return Racks(snapshot, tree, GangPlanner(Fitter(snapshot), tree), held)
