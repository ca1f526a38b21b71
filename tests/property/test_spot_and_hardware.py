"""Spot nodes and kinds of hardware on every small cluster: what is required is never relaxed, what is avoided is used
only where nothing else will do, and the pods of one gang are on nodes of one kind."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support.machines import reference

from kgwe.model.network import domains
from kgwe.model.network.domains import Place, Tree
from kgwe.placement.disruption.gang_constraints import GangConstraints
from kgwe.placement.fleet.constraints import Constraints
from kgwe.placement.fleet.hardware_kinds import ARCH_LABEL
from kgwe.placement.fleet.node import Gpus, Node, Request, Shape, SpotPolicy
from kgwe.placement.fleet.snapshot import Grant, Snapshot
from kgwe.placement.gang.search import GangSearch
from kgwe.placement.planning.gang_planner import GangPlan, GangPlanner, GangRequest, Hardware, Role, Segment, Strategy
from kgwe.placement.pod.engine import Decision, Engine
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.pod.ranking import Strategy as OneStrategy

LEVELS = ("leaf", "spine")
CARDS = 4
SHAPES = tuple(Shape(reference.nvswitch(CARDS), model, 81_559, "Hopper") for model in ("H100", "GB200"))


@dataclass
class World:
    snapshot: Snapshot
    tree: Tree
    fitter: Fitter

    @property
    def planner(self) -> GangPlanner:
        return GangPlanner(self.fitter, self.tree)

    def without(self, gone: set[str]) -> World:
        """The same fleet without these nodes."""
        kept = [node for node in self.snapshot.nodes if node.name not in gone]
        snapshot = Snapshot.from_nodes(kept)
        for number, node in enumerate(kept):
            taken = node.usable & ~int(self.snapshot.free[self.snapshot.index[node.name]])
            if taken:
                snapshot.commit(Grant(number, gpus=taken, pods=0))
        return World(snapshot, self.tree, Fitter(snapshot))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Up to eight nodes of two models, two architectures, spot or not, some of their cards taken."""
    nodes, places, held = [], [], []
    for number in range(draw(st.integers(1, 8))):
        leaf = draw(st.sampled_from(("a", "b", "c")))
        arch = draw(st.sampled_from(("amd64", "amd64", "arm64")))
        shape = draw(st.sampled_from(SHAPES))
        spot, reliability = draw(st.booleans()), draw(st.sampled_from((1.0, 1.0, 0.5)))
        labels = {ARCH_LABEL: arch}
        nodes.append(Node(f"n{number}", shape, 8_000, 2**33, labels=labels, spot=spot, reliability=reliability))
        places.append(Place(f"n{number}", (leaf, "t" if leaf == "c" else "s"), gb_per_s=50.0))
        if taken := draw(st.integers(0, (1 << CARDS) - 1)):
            held.append(Grant(number, gpus=taken, pods=0))
    snapshot = Snapshot.from_nodes(nodes)
    snapshot.commit_all(held)
    return World(snapshot, domains.build_tree(places, LEVELS), Fitter(snapshot))


policies = st.sampled_from(SpotPolicy)


@st.composite
def gangs(draw: st.DrawFn) -> GangRequest:
    size = draw(st.integers(1, 2))
    request = Request(Gpus(count=draw(st.integers(1, 3))), spot=draw(policies))
    return GangRequest.uniform(
        request,
        size * draw(st.integers(1, 3)),
        segments=(Segment(size, "leaf"),) if draw(st.booleans()) else (),
        required=draw(st.sampled_from(("", "leaf", "spine"))),
        preferred=draw(st.sampled_from(("", "leaf"))),
        strategy=draw(st.sampled_from(Strategy)),
        hardware=draw(st.sampled_from(Hardware)),
        exposed=draw(st.booleans()),
    )


def spot_nodes(world: World) -> set[str]:
    return {node.name for node in world.snapshot.nodes if node.spot}


def kinds(world: World, plan: GangPlan) -> set[tuple[str, str]]:
    found = [world.snapshot.nodes[seat.grant.node] for seat in plan.seats]
    return {(node.labels[ARCH_LABEL], node.shape.model) for node in found}


class TestOnePod:
    @given(worlds(), st.integers(1, 3), policies, st.sampled_from(OneStrategy))
    def test_a_policy_holds_under_every_strategy(self, world, count, policy, strategy):
        request = Request(Gpus(count=count), spot=policy)
        fits = world.fitter.check_nodes(dataclasses.replace(request, spot=SpotPolicy.ALLOW)) == FitStatus.FITS
        spot = world.snapshot.spot
        may = fits & spot if policy is SpotPolicy.REQUIRE else fits
        if policy is SpotPolicy.AVOID and (fits & ~spot).any():
            may = fits & ~spot
        answer = Engine(world.snapshot).decide(request, strategy=strategy, rng=np.random.default_rng(1))
        assert isinstance(answer, Decision) == bool(may.any())
        assert not isinstance(answer, Decision) or may[answer.node]

    @given(worlds(), st.integers(1, 3))
    def test_without_spot_nodes_to_choose_from_the_choice_is_as_without_a_policy(self, world, count):
        request = Request(Gpus(count=count))
        rest = world.without(spot_nodes(world))
        plain = Engine(rest.snapshot).decide(request)
        assume(isinstance(plain, Decision))
        avoiding = Engine(world.snapshot).decide(dataclasses.replace(request, spot=SpotPolicy.AVOID))
        assert isinstance(avoiding, Decision)
        assert isinstance(plain, Decision)
        assert (avoiding.name, avoiding.grant.gpus) == (plain.name, plain.grant.gpus)


class TestGangs:
    @given(worlds(), gangs())
    def test_spot_is_used_only_where_no_plan_without_it_is_as_near(self, world, gang):
        gang = gang.with_requests(spot=SpotPolicy.AVOID)
        plan = world.planner.try_plan(gang)
        assume(isinstance(plan, GangPlan))
        if not spot_nodes(world) & set(plan.nodes):
            return
        other = world.without(spot_nodes(world)).planner.try_plan(gang)
        if isinstance(other, GangPlan) and other.preferred_met >= plan.preferred_met:
            ladder = GangSearch(world.fitter, world.tree).level_tables.for_levels(gang.named_levels)
            assert ladder.find_level(other.level) > ladder.find_level(plan.level)

    @given(worlds(), gangs())
    def test_to_avoid_spot_never_keeps_a_gang_waiting(self, world, gang):
        free = world.planner.try_plan(gang.with_requests(spot=SpotPolicy.ALLOW))
        avoiding = world.planner.try_plan(gang.with_requests(spot=SpotPolicy.AVOID))
        assert isinstance(free, GangPlan) == isinstance(avoiding, GangPlan)
        if isinstance(free, GangPlan):
            assert len(avoiding.seats) == len(free.seats)
            assert avoiding.preferred_met >= free.preferred_met

    @given(worlds(), gangs())
    def test_required_spot_is_never_relaxed(self, world, gang):
        gang = gang.with_requests(spot=SpotPolicy.REQUIRE)
        plan = world.planner.try_plan(gang)
        assert not isinstance(plan, GangPlan) or set(plan.nodes) <= spot_nodes(world)
        others = {node.name for node in world.snapshot.nodes} - spot_nodes(world)
        alone = world.without(others).planner.try_plan(gang)
        assert isinstance(plan, GangPlan) == isinstance(alone, GangPlan)

    @given(worlds(), gangs())
    def test_nodes_of_a_gang_are_of_one_kind_unless_it_says_otherwise(self, world, gang):
        plan = world.planner.try_plan(gang)
        assume(isinstance(plan, GangPlan))
        found = kinds(world, plan)
        if gang.hardware is Hardware.SAME:
            assert len(found) == 1
        elif gang.hardware is Hardware.PREFER_SAME:
            assert len({arch for arch, _ in found}) == 1

    @given(worlds(), gangs())
    def test_a_gang_of_one_kind_waits_only_where_no_kind_holds_it(self, world, gang):
        gang = dataclasses.replace(gang, hardware=Hardware.SAME)
        plan = world.planner.try_plan(gang)
        nodes = world.snapshot.nodes
        alone = []
        for kind in {(node.labels[ARCH_LABEL], node.shape.model) for node in nodes}:
            others = {node.name for node in nodes if (node.labels[ARCH_LABEL], node.shape.model) != kind}
            alone.append(world.without(others).planner.try_plan(gang))
        assert isinstance(plan, GangPlan) == any(isinstance(each, GangPlan) for each in alone)

    @given(worlds(), gangs())
    def test_a_quick_look_and_a_plan_agree(self, world, gang):
        search = GangSearch(world.fitter, world.tree)
        assert search.has_room(gang) == isinstance(search.find(gang), GangPlan)

    @given(worlds(), gangs(), st.data())
    def test_a_member_that_moves_stays_on_the_kind_of_the_others(self, world, gang, data):
        plan = world.planner.try_plan(gang)
        assume(isinstance(plan, GangPlan) and len(plan.seats) > 1)
        moving = data.draw(st.integers(0, len(plan.seats) - 1))
        bonds = GangConstraints(GangSearch(world.fitter, world.tree).level_tables, gang, len(plan.seats))
        placed = {seat.rank: seat.grant.node for seat in plan.seats if seat.rank != moving}
        allowed = bonds.allowed_nodes(moving, placed)
        assert allowed[plan.seats[moving].grant.node]
        nodes = [world.snapshot.nodes[number] for number in np.flatnonzero(allowed)]
        stays = world.snapshot.nodes[next(iter(placed.values()))]
        if gang.hardware is not Hardware.ANY:
            assert {node.labels[ARCH_LABEL] for node in nodes} == {stays.labels[ARCH_LABEL]}
        if gang.hardware is Hardware.SAME:
            assert {node.shape.model for node in nodes} == {stays.shape.model}

    @given(worlds(), st.sampled_from(Hardware))
    def test_a_role_that_names_its_architecture_decides_for_itself(self, world, hardware):
        leader = Request(Gpus(count=1), model="H100", constraints=Constraints(((ARCH_LABEL, "arm64"),)))
        worker = Request(Gpus(count=1), model="GB200", constraints=Constraints(((ARCH_LABEL, "amd64"),)))
        fits = [(world.fitter.check_nodes(each) == FitStatus.FITS).any() for each in (leader, worker)]
        gang = GangRequest((Role("leader", leader, 1), Role("worker", worker, 1)), hardware=hardware)
        assert isinstance(world.planner.try_plan(gang), GangPlan) == all(fits)
