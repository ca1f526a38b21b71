"""Removals: no pod is left without a place, and every node that stays has a reason."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from tests.support.builders.purchases import GIB, pool

from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.pod.engine import Engine
from kgwe.placement.pod.fit import Fitter
from kgwe.scaling.removal import Keep, NodeUse, RemovalSettings, RunningPod, plan_removals

LOW = NodeUse(gpu_use=0.05, idle_min=60.0)


class Scene:
    """Nodes with 4 GPUs, and pods booked on them."""

    def __init__(self, nodes: int) -> None:
        made = pool("four", 4, 4.0)
        self.snapshot = Snapshot.from_nodes(made.make_node(number) for number in range(nodes))
        self.engine = Engine(self.snapshot)
        self.pods: list[RunningPod] = []
        self.uses = {node.name: LOW for node in self.snapshot.nodes}
        self.budgets: dict[str, int] = {}

    def name(self, number: int) -> str:
        return self.snapshot.nodes[number].name

    def add(self, node: int, gpus: int, **changes) -> None:
        request = Request(Gpus(count=gpus), 1000, GIB)
        grant = Fitter(self.snapshot).find_grant(request, node)
        assert grant is not None
        self.snapshot.commit(grant)
        self.pods.append(RunningPod(name=f"pod-{len(self.pods)}", request=request, grant=grant, **changes))

    def plan(self, **settings):
        before = self.snapshot.free.copy(), self.snapshot.cpu_milli.copy()
        found = plan_removals(self.engine, self.pods, self.uses, self.budgets, RemovalSettings(**settings))
        assert np.array_equal(self.snapshot.free, before[0])
        assert np.array_equal(self.snapshot.cpu_milli, before[1])
        return found


def test_an_idle_node_goes_after_ten_minutes_only():
    scene = Scene(2)
    scene.uses[scene.name(1)] = NodeUse(idle_min=9.0)
    plan = scene.plan()
    assert [each.node for each in plan.removals] == [scene.name(0)]
    assert plan.kept[scene.name(1)][0] is Keep.TOO_YOUNG


def test_pods_of_a_node_with_little_use_move_to_nodes_that_stay():
    scene = Scene(3)
    scene.add(0, 1)
    scene.add(1, 2)
    scene.uses[scene.name(1)] = NodeUse(gpu_use=0.9)
    scene.uses[scene.name(2)] = NodeUse(gpu_use=0.9)
    scene.add(2, 4)
    plan = scene.plan()
    assert [(each.node, each.moves) for each in plan.removals] == [(scene.name(0), (("pod-0", scene.name(1)),))]
    assert plan.kept[scene.name(1)][0] is Keep.IN_USE


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"may_move": False}, Keep.DO_NOT_DISRUPT),
        ({"gang": "g"}, Keep.GANG),
        ({"budgets": ("pdb",)}, Keep.BUDGET),
    ],
)
def test_a_pod_that_must_not_move_keeps_its_node(changes, reason):
    scene = Scene(2)
    scene.add(0, 1, **changes)
    scene.uses[scene.name(1)] = NodeUse(gpu_use=0.9)
    scene.add(1, 1)
    plan = scene.plan()
    assert not plan.removals
    assert plan.kept[scene.name(0)][0] is reason


def test_a_budget_is_spent_once_for_all_nodes():
    scene = Scene(3)
    for node in (0, 1):
        scene.add(node, 1, budgets=("pdb",))
    scene.add(2, 1)
    scene.uses[scene.name(2)] = NodeUse(gpu_use=0.9)
    scene.budgets = {"pdb": 1}
    assert len(scene.plan().removals) == 1
    scene.budgets = {"pdb": 2}
    assert len(scene.plan().removals) == 2


def test_unknown_use_and_foreign_nodes_block_a_removal():
    scene = Scene(3)
    scene.add(0, 1)
    scene.uses[scene.name(0)] = NodeUse(gpu_use=None)
    scene.uses[scene.name(1)] = replace(LOW, is_owned=False)
    del scene.uses[scene.name(2)]
    kept = {name: reason for name, (reason, _) in scene.plan().kept.items()}
    assert kept == {
        scene.name(0): Keep.UNKNOWN_USE,
        scene.name(1): Keep.NOT_OWNED,
        scene.name(2): Keep.NOT_OWNED,
    }


def test_pods_of_daemon_sets_do_not_count():
    scene = Scene(1)
    scene.add(0, 1, is_daemon=True, may_move=False)
    assert [each.node for each in scene.plan().removals] == [scene.name(0)]


def test_a_pool_keeps_its_least_nodes():
    plan = Scene(3).plan(least={"": 2})
    assert len(plan.removals) == 1
    assert {reason for reason, _ in plan.kept.values()} == {Keep.LEAST}


def test_without_consolidation_only_empty_nodes_go():
    scene = Scene(3)
    scene.add(0, 1)
    plan = scene.plan(consolidate=False)
    assert {each.node for each in plan.removals} == {scene.name(1), scene.name(2)}
    assert plan.kept[scene.name(0)] == (Keep.IN_USE, "pod-0")


def check_random_scene(seed: int) -> None:
    """After all moves every pod has its devices on a node that stays."""
    random_ = random.Random(seed)
    scene = Scene(random_.randint(1, 8))
    for node in range(len(scene.snapshot)):
        left = 4
        while left and random_.random() < 0.6:
            gpus = random_.randint(1, left)
            left -= gpus
            scene.add(
                node,
                gpus,
                is_daemon=random_.random() < 0.1,
                may_move=random_.random() < 0.9,
                gang="g" if random_.random() < 0.1 else "",
                budgets=("pdb",) if random_.random() < 0.3 else (),
            )
        use = random_.choice((None, 0.05, 0.05, 0.5))
        scene.uses[scene.name(node)] = NodeUse(
            gpu_use=use, idle_min=random_.choice((5.0, 60.0)), is_owned=random_.random() < 0.9
        )
    scene.budgets = {"pdb": random_.randint(0, 3)}
    plan = scene.plan()
    removed = {each.node for each in plan.removals}
    assert removed | set(plan.kept) == {node.name for node in scene.snapshot.nodes}
    assert not removed & set(plan.kept)
    moves = dict(move for each in plan.removals for move in each.moves)
    stays = Snapshot.from_nodes(node for node in scene.snapshot.nodes if node.name not in removed)
    fitter = Fitter(stays)
    for pod in scene.pods:
        home = scene.snapshot.nodes[pod.grant.node].name
        if home not in removed:
            assert pod.name not in moves
            stays.commit(replace(pod.grant, node=stays.index[home]))
    disturbed = 0
    for pod in scene.pods:
        home = scene.snapshot.nodes[pod.grant.node].name
        if home in removed and not pod.is_daemon:
            assert pod.may_move
            assert not pod.gang
            disturbed += bool(pod.budgets)
            grant = fitter.find_grant(pod.request, stays.index[moves[pod.name]])
            assert grant is not None, "a pod is left without a place"
            stays.commit(grant)
    assert disturbed <= scene.budgets["pdb"]


def test_no_removal_leaves_a_pod_without_a_place():
    for seed in range(80):
        check_random_scene(seed)


@pytest.mark.slow
def test_none_of_10000_removals_leaves_a_pod_without_a_place():
    for seed in range(1000, 11_000):
        check_random_scene(seed)
