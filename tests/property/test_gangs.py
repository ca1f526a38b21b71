"""What holds for every gang on every small cluster, checked against trying all placements."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support.machines import reference

from kgwe.model.network import domains
from kgwe.model.network.domains import Place, Speed, Tree
from kgwe.placement.disruption.preemption import PreemptionPlan, plan_preemption
from kgwe.placement.disruption.running import Member, Running
from kgwe.placement.fleet.node import Gpus, Node, Request, Shape
from kgwe.placement.fleet.snapshot import Grant, Snapshot
from kgwe.placement.gang import ring, split
from kgwe.placement.gang.levels import LevelTables
from kgwe.placement.planning.diagnosis import ChangeKind, Diagnosis
from kgwe.placement.planning.gang_planner import (
    NODE,
    NVLINK,
    Evictable,
    Following,
    GangPlan,
    GangPlanner,
    GangRequest,
    Role,
    Segment,
    Strategy,
)
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.refusal import Refusal

LEVELS = ("leaf", "spine")
CARDS = 4
SHAPE = Shape(reference.nvswitch(CARDS), "H100", 81_559, "Hopper")


@dataclass
class World:
    snapshot: Snapshot
    tree: Tree
    fitter: Fitter
    planner: GangPlanner
    held: list[Grant]


@st.composite
def worlds(draw: st.DrawFn, most: int = 7) -> World:
    """Up to seven nodes of four cards, some taken, somewhere below up to three leaves and two spines or nowhere."""
    count = draw(st.integers(1, most))
    nodes, places, held = [], [], []
    for number in range(count):
        name = f"n{number}"
        leaf = draw(st.sampled_from(("a", "b", "c", "")))
        spine = {"a": "s", "b": "s", "c": "t", "": draw(st.sampled_from(("s", "")))}[leaf]
        speed = draw(st.sampled_from((0.0, 25.0, 50.0)))
        nvlink = draw(st.sampled_from(("", "", "x", "y")))
        nodes.append(Node(name, SHAPE, 8_000, 2**33, pods=draw(st.integers(1, 6))))
        places.append(Place(name, (leaf, spine), nvlink, speed))
        taken = draw(st.integers(0, (1 << CARDS) - 1))
        if taken:
            held.append(Grant(number, gpus=taken))
    snapshot = Snapshot.from_nodes(nodes)
    held = [grant for grant in held if snapshot.pods[grant.node]]
    snapshot.commit_all(held)
    oversubscribed = {"leaf": Speed(oversubscription=draw(st.sampled_from((1.0, 2.0))))}
    tree = domains.build_tree(places, LEVELS, speeds=oversubscribed)
    fitter = Fitter(snapshot)
    return World(snapshot, tree, fitter, GangPlanner(fitter, tree), held)


levels = st.sampled_from(("", NODE, NVLINK, "leaf", "spine"))


@st.composite
def gangs(draw: st.DrawFn) -> GangRequest:
    """Of equal pods, without demands on the network."""
    size = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 4))
    segments = (Segment(size, draw(st.sampled_from((NODE, NVLINK, "leaf")))),) if draw(st.booleans()) else ()
    replicas = size * groups
    return GangRequest.uniform(
        Request(Gpus(count=draw(st.integers(1, 3))), cpu_milli=draw(st.sampled_from((0, 3_000)))),
        replicas,
        min_replicas=draw(st.sampled_from((0, size))),
        segments=segments,
        required=draw(levels),
        preferred=draw(levels),
        strategy=draw(st.sampled_from(list(Strategy))),
        max_pods_per_node=draw(st.sampled_from((0, 0, 2))),
        max_nodes_per_leaf=draw(st.sampled_from((0, 0, 0, 1, 2))),
        max_gpus_per_leaf=draw(st.sampled_from((0, 0, 0, 3, 4, 6))),
    )


def state(snapshot: Snapshot):
    return [
        each.tolist()
        for each in (snapshot.free, snapshot.cpu_milli, snapshot.memory_bytes, snapshot.pods, snapshot.milli)
    ]


def domain_of(world: World, node: str, level: str) -> object:
    """What tells the domain of a node on a level; a node that does not say is its own NVLink domain."""
    place = world.tree.position[node]
    if level == NODE:
        return node
    if level == NVLINK:
        number = int(world.tree.nvlink_of[place])
        return node if number < 0 else number
    return int(world.tree.domain_of[world.tree.level(level), place]) if level else 0


def groups_hold(world: World, nodes: list[str], segments: tuple[Segment, ...]) -> bool:
    return all(
        len({domain_of(world, node, segment.level) for node in nodes[first : first + segment.size]}) == 1
        for segment in segments
        for first in range(0, len(nodes), segment.size)
    )


def within_leaf_limits(world: World, gang: GangRequest, loads: dict[str, int], each: int) -> bool:
    """Whether no leaf gives more nodes or cards than the gang allows; `loads`: node -> pods of so many cards."""
    nodes = Counter(domain_of(world, node, "leaf") for node in loads)
    gpus = Counter(leaf for node, pods in loads.items() for leaf in [domain_of(world, node, "leaf")] * pods * each)
    return (not gang.max_nodes_per_leaf or max(nodes.values()) <= gang.max_nodes_per_leaf) and (
        not gang.max_gpus_per_leaf or max(gpus.values()) <= gang.max_gpus_per_leaf
    )


def feasible(world: World, gang: GangRequest, count: int, level: str) -> bool:
    """Whether any numbers of pods per node will do, with all pods in one domain of the level."""
    role = gang.roles[0]
    names = [node.name for node in world.snapshot.nodes]
    room = world.fitter.count_pods(role.request).tolist()
    if gang.max_pods_per_node:
        room = [min(each, gang.max_pods_per_node) for each in room]
    for loads in itertools.product(*(range(each + 1) for each in room)):
        if sum(loads) != count:
            continue
        used = [name for name, load in zip(names, loads, strict=True) if load]
        if len({domain_of(world, name, level) for name in used}) > 1:
            continue
        pods = {name: load for name, load in zip(names, loads, strict=True) if load}
        if not within_leaf_limits(world, gang, pods, role.request.gpus.count):
            continue
        totals = [
            Counter(
                key
                for name, load in zip(names, loads, strict=True)
                for key in [domain_of(world, name, segment.level)] * load
            )
            for segment in role.segments
        ]
        if all(n % s.size == 0 for s, each in zip(role.segments, totals, strict=True) for n in each.values()):
            return True
    return False


# --- all or none, within bounds -------------------------------------------------------------------------


@given(world=worlds(), gang=gangs())
def test_a_plan_is_whole_fits_and_keeps_what_is_required(world, gang):
    before = state(world.snapshot)
    plan = world.planner.plan(gang)
    assert state(world.snapshot) == before, "planning books nothing"
    if isinstance(plan, Refusal):
        return
    role = gang.roles[0]
    assert role.required_replicas <= len(plan.seats) <= role.replicas
    assert [seat.rank for seat in plan.seats] == list(range(len(plan.seats)))
    nodes = [seat.node for seat in plan.seats]
    if gang.required:
        assert len({domain_of(world, node, gang.required) for node in nodes}) == 1
    assert groups_hold(world, nodes, role.segments)
    if gang.max_pods_per_node:
        assert max(Counter(nodes).values()) <= gang.max_pods_per_node
    assert within_leaf_limits(world, gang, Counter(nodes), role.request.gpus.count)
    assert all(seat.grant.gpus.bit_count() == role.request.gpus.count for seat in plan.seats)
    # commit_all refuses whatever is booked twice or does not fit.
    world.snapshot.commit_all(plan.grants)()
    assert state(world.snapshot) == before
    assert 0 <= plan.score.total <= 100


@given(world=worlds(), gang=gangs())
def test_the_same_gang_on_the_same_snapshot_gets_the_same_plan(world, gang):
    again = GangPlanner(Fitter(world.snapshot), world.tree)
    first, second = world.planner.plan(gang), again.plan(gang)
    if isinstance(first, GangPlan):
        assert first == second
    else:
        assert isinstance(second, Refusal)
        assert (first.code, first.message) == (second.code, second.message)


# --- against trying everything --------------------------------------------------------------------------


@given(world=worlds(most=5), gang=gangs())
def test_a_refusal_is_right_and_the_level_is_the_lowest(world, gang):
    plan = world.planner.plan(gang)
    role = gang.roles[0]
    if NVLINK in gang.named_levels:
        # Beside NVLink domains, limits per leaf may refuse what could fit (docs/internals/gang-planner.md).
        assume(not gang.max_nodes_per_leaf and not gang.max_gpus_per_leaf)
    if isinstance(plan, Refusal):
        assert not feasible(world, gang, role.required_replicas, gang.required)
        return
    count = len(plan.seats)
    if count < role.replicas:
        assert not feasible(world, gang, count + role.replica_step, gang.required), (
            "an elastic gang gets the most there is"
        )
    if gang.strategy is Strategy.CONSOLIDATED:
        below = {"": LEVELS[::-1], "cluster": LEVELS[::-1], "spine": ("leaf",)}.get(plan.level, ())
        lower = [*below, *([NODE] if plan.level != NODE else [])]
        for level in lower:
            assert not feasible(world, gang, count, level), f"{level} would hold it, not only {plan.level}"


@given(
    room=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    wanted=st.integers(1, 30),
)
def test_the_fewest_children_are_taken_with_as_few_pairs_apart_as_can_be(room, wanted):
    assume(sum(room) >= wanted)
    found = split.divide_pods(np.array(room), wanted).tolist()
    assert sum(found) == wanted
    assert all(0 <= n <= most for n, most in zip(found, room, strict=True))
    ways = (
        [loads for loads in itertools.product(*(range(most + 1) for most in room)) if sum(loads) == wanted]
        if np.prod([most + 1 for most in room]) < 20_000
        else []
    )
    for loads in ways:
        used = sum(n > 0 for n in loads)
        assert used >= sum(n > 0 for n in found)
        if used == sum(n > 0 for n in found):
            assert sum(n * n for n in loads) <= sum(n * n for n in found)


@given(
    room=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    wanted=st.integers(1, 30),
)
def test_the_fewest_nodes_share_as_evenly_as_can_be(room, wanted):
    assume(sum(room) >= wanted)
    found = split.divide_pods(np.array(room), wanted, of_nodes=True).tolist()
    assert sum(found) == wanted
    assert all(0 <= n <= most for n, most in zip(found, room, strict=True))
    if np.prod([most + 1 for most in room]) >= 20_000:
        return
    for loads in itertools.product(*(range(most + 1) for most in room)):
        if sum(loads) == wanted and sum(n > 0 for n in loads) <= sum(n > 0 for n in found):
            assert sum(n > 0 for n in loads) == sum(n > 0 for n in found)
            assert min(n for n in loads if n) <= min(n for n in found if n)


# --- leaves ---------------------------------------------------------------------------------------------


def largest_first(room: dict[Any, int], pods: int) -> dict[Any, int]:
    """Kueue's rule: those with most room first, the last one the tightest that holds the rest."""
    found: dict[Any, int] = {}
    left = sorted(room, key=lambda each: -room[each])
    while pods:
        holds = [each for each in left if room[each] >= pods]
        chosen = min(holds, key=lambda each: room[each]) if holds else left[0]
        left.remove(chosen)
        found[chosen] = min(pods, room[chosen])
        pods -= found[chosen]
    return found


def best_fit_leaves(world: World, gang: GangRequest, pods: int) -> int:
    """Leaves of the gang where Kueue's best-fit rule puts it."""
    names = [node.name for node in world.snapshot.nodes]
    room = dict(zip(names, world.fitter.count_pods(gang.roles[0].request).tolist(), strict=True))

    def sums(level: str, nodes: list[str]) -> dict[Any, int]:
        found: Counter[object] = Counter()
        for node in nodes:
            found[domain_of(world, node, level)] += room[node]
        return {domain: count for domain, count in found.items() if count}

    chosen = names
    for level in (*LEVELS, ""):
        held = sums(level, names)
        if any(count >= pods for count in held.values()):
            tightest = largest_first(held, pods)
            chosen = [node for node in names if domain_of(world, node, level) in tightest]
            break
    if level == "":
        spines = largest_first(sums("spine", names), pods)
        chosen = [node for node in names if domain_of(world, node, "spine") in spines]
    leaves = largest_first(sums("leaf", chosen), pods)
    inside = {node: room[node] for node in chosen if domain_of(world, node, "leaf") in leaves and room[node]}
    return len({domain_of(world, node, "leaf") for node in largest_first(inside, pods)})


@st.composite
def wide_worlds(draw: st.DrawFn) -> World:
    """Up to six leaves of up to three nodes in up to three spines: gangs often span several."""
    nodes: list[Node] = []
    places: list[Place] = []
    held: list[Grant] = []
    for leaf in range(draw(st.integers(2, 6))):
        spine = draw(st.sampled_from("stu"))
        for _ in range(draw(st.integers(1, 3))):
            name = f"n{len(nodes)}"
            taken = draw(st.sampled_from((0, 0, 1, 3, 15)))
            if taken:
                held.append(Grant(len(nodes), gpus=taken))
            nodes.append(Node(name, SHAPE, 8_000, 2**33))
            places.append(Place(name, (f"{spine}{leaf}", spine), gb_per_s=draw(st.sampled_from((25.0, 50.0)))))
    snapshot = Snapshot.from_nodes(nodes)
    snapshot.commit_all(held)
    tree = domains.build_tree(places, LEVELS)
    fitter = Fitter(snapshot)
    return World(snapshot, tree, fitter, GangPlanner(fitter, tree), held)


equal_gangs = st.builds(
    lambda gpus, pods, preferred: GangRequest.uniform(Request(Gpus(count=gpus)), pods, preferred=preferred),
    gpus=st.sampled_from((1, 2, 4)),
    pods=st.integers(1, 9),
    preferred=st.sampled_from(("", "leaf", "spine")),
)


@given(world=st.one_of(worlds(), wide_worlds()), gang=equal_gangs, others=st.lists(equal_gangs, max_size=5))
def test_no_plan_uses_more_leaves_than_best_fit_unless_it_says_why(world, gang, others):
    before = state(world.snapshot)
    plan = world.planner.plan(gang, following=Following.from_gangs(others))
    assert state(world.snapshot) == before
    if isinstance(plan, GangPlan):
        assert plan.leaves == len({domain_of(world, node, "leaf") for node in plan.nodes})
        assert plan.leaves <= best_fit_leaves(world, gang, len(plan.seats)) or plan.choice_note


@given(world=wide_worlds(), gang=equal_gangs, others=st.lists(equal_gangs, max_size=5))
def test_those_that_follow_cost_a_gang_nothing_it_asked_for(world, gang, others):
    alone, plan = world.planner.plan(gang), world.planner.plan(gang, following=Following.from_gangs(others))
    if isinstance(alone, Refusal):
        assert isinstance(plan, Refusal)
        return
    assert isinstance(plan, GangPlan)
    assert len(plan.seats) == len(alone.seats)
    assert plan.leaves == alone.leaves or "will fit" in plan.choice_note
    assert plan.preferred_met == alone.preferred_met
    assert plan.ring.gb_per_s >= alone.ring.gb_per_s
    assert bool(plan.choice_note) is (plan.nodes != alone.nodes)
    world.snapshot.commit_all(plan.grants)()


def _places(plan):
    """How many pods of which role go to which node."""
    return Counter((seat.role, seat.node) for seat in plan.seats)


@given(world=wide_worlds(), gangs=st.lists(equal_gangs, min_size=2, max_size=6))
def test_a_joint_plan_costs_no_gang_what_it_asked_for_and_says_why_it_goes_elsewhere(world, gangs):
    before = state(world.snapshot)
    intents = world.planner.arrange_gangs(Following.from_gangs(gangs))
    assert intents == world.planner.arrange_gangs(Following.from_gangs(gangs)), "the same every time"
    assert state(world.snapshot) == before
    undo = []
    for gang, intent in zip(gangs, intents, strict=True):
        alone, plan = world.planner.plan(gang), world.planner.plan(gang, following=Following(intent=intent))
        if isinstance(alone, Refusal):
            assert isinstance(plan, Refusal)
            continue
        assert isinstance(plan, GangPlan)
        assert len(plan.seats) == len(alone.seats)
        assert plan.leaves <= best_fit_leaves(world, gang, len(plan.seats)) or "planned together" in plan.choice_note
        assert plan.preferred_met == alone.preferred_met
        assert plan.ring.gb_per_s >= alone.ring.gb_per_s
        assert bool(plan.choice_note) is (_places(plan) != _places(alone))
        undo.append(world.snapshot.commit_all(plan.grants))
    for each in reversed(undo):
        each()


# --- diagnoses ------------------------------------------------------------------------------------------


@given(world=worlds(), gang=gangs(), data=st.data())
def test_every_change_a_diagnosis_suggests_starts_the_gang(world, gang, data):
    before = state(world.snapshot)
    running = tuple(
        Running(
            f"job-{number}",
            (Member("pod", Request(Gpus(count=grant.gpus.bit_count())), grant),),
            priority=data.draw(st.integers(-2, 0)),
            preemptible=data.draw(st.sampled_from((True, True, False))),
            started_at_s=data.draw(st.sampled_from((0.0, 500.0))),
        )
        for number, grant in enumerate(world.held)
    )
    answer = world.planner.plan(gang, evictable=Evictable(running, now_s=1000.0))
    assert state(world.snapshot) == before
    if isinstance(answer, GangPlan):
        return
    refusal = answer.detail
    assert isinstance(refusal, Diagnosis)
    assert refusal.short > 0
    assert "cannot start" in refusal.describe()
    for change in refusal.changes:
        assert bool(change.evicts) is (change.kind is ChangeKind.EVICT)
        undos = [world.snapshot.release(grant) for victim in change.evicts for grant in victim.grants]
        plan = GangPlanner(Fitter(world.snapshot), world.tree).plan(change.gang)
        assert isinstance(plan, GangPlan), change.text
        assert plan == change.plan
        world.snapshot.commit_all(plan.grants)()
        for undo in reversed(undos):
            undo()
    assert state(world.snapshot) == before
    assert_victims_are_those_of_preemption(world, gang, running, refusal)


def assert_victims_are_those_of_preemption(world, gang, running, refusal):
    found = [change for change in refusal.changes if change.kind is ChangeKind.EVICT]
    made = plan_preemption(world.fitter, world.tree, gang, running, 1000.0, priority=gang.priority)
    if isinstance(made, PreemptionPlan):
        assert [(change.evicts, change.plan.grants) for change in found] == [(made.victims, made.placement)]
    else:
        assert not found


# --- roles ----------------------------------------------------------------------------------------------


def feasible_together(world: World, counts: tuple[int, int], each: int, level: str) -> bool:
    """Whether any numbers of one-card leaders and of workers per node will do, with all in one domain of the level."""
    names = [node.name for node in world.snapshot.nodes]
    free = [int(mask).bit_count() for mask in world.snapshot.free]
    slots = world.snapshot.pods.tolist()
    rooms = [
        [(a, b) for a in range(cards + 1) for b in range(cards + 1) if a + each * b <= cards and a + b <= pods]
        for cards, pods in zip(free, slots, strict=True)
    ]
    for loads in itertools.product(*rooms):
        if (sum(a for a, _ in loads), sum(b for _, b in loads)) == counts:
            used = [name for name, load in zip(names, loads, strict=True) if sum(load)]
            if len({domain_of(world, name, level) for name in used}) == 1:
                return True
    return False


@given(
    world=worlds(most=4),
    leaders=st.integers(1, 2),
    workers=st.integers(1, 5),
    each=st.integers(2, 4),
    required=levels,
    per_leaf=st.sampled_from((0, 0, 4, 5)),
)
def test_roles_are_placed_together_and_in_one_domain(world, leaders, workers, each, required, per_leaf):
    roles = (Role("leader", Request(Gpus(count=1)), leaders), Role("worker", Request(Gpus(count=each)), workers))
    before = state(world.snapshot)
    gang = GangRequest(roles, required=required, max_gpus_per_leaf=per_leaf)
    plan = world.planner.plan(gang)
    assert state(world.snapshot) == before
    if isinstance(plan, GangPlan):
        assert plan.replicas == {"leader": leaders, "worker": workers}
        if required:
            assert len({domain_of(world, seat.node, required) for seat in plan.seats}) == 1
        held = Counter(seat.node for seat in plan.seats for _ in range(seat.grant.gpus.bit_count()))
        assert within_leaf_limits(world, gang, held, 1)
        world.snapshot.commit_all(plan.grants)()
        return
    assert isinstance(plan.detail, Diagnosis)
    if plan.detail.proven and not per_leaf:
        assert not feasible_together(world, (leaders, workers), each, required)


# --- rings ----------------------------------------------------------------------------------------------


@given(world=worlds(), linked=st.booleans())
def test_steps_of_the_network_are_what_the_tree_says(world, linked):
    tree = world.tree
    if linked:
        places = [
            Place(
                name,
                tuple(level.names[tree.domain_of[number, place]] for number, level in enumerate(tree.levels)),
                gb_per_s=float(tree.node_gb_per_s[place]),
            )
            for place, name in enumerate(tree.nodes)
        ]
        tree = domains.build_tree(places, LEVELS, connected=[("leaf", "a", "c")])
    pairs = list(itertools.product(range(len(tree.nodes)), repeat=2))
    a, b = np.array(pairs).T
    assert ring.network_gb_per_s(tree, a, b).tolist() == [tree.gb_per_s(*pair) for pair in pairs]


@given(world=worlds())
def test_no_step_is_faster_than_the_ceiling_of_its_node(world):
    rings, ladder = ring.RingPredictor(world.snapshot), LevelTables(world.tree, world.snapshot).for_levels()
    pairs = list(itertools.permutations(range(len(ladder.node)), 2))
    assume(pairs)
    here, there = np.array(pairs).T
    whole = np.ones(len(pairs))
    rates, _ = rings.predict_steps(ladder, here, there, whole, whole)
    assert (rates <= rings.bound_steps(ladder)[here]).all()


@given(world=worlds(), gang=gangs())
def test_a_gang_over_several_nodes_has_no_faster_ring_than_their_ceilings(world, gang):
    plan = world.planner.plan(gang)
    if isinstance(plan, GangPlan) and len(plan.nodes) > 1:
        ladder = LevelTables(world.tree, world.snapshot).for_levels(gang.named_levels)
        ceilings = dict(
            zip(ladder.levels[0].names, ring.RingPredictor(world.snapshot).bound_steps(ladder).tolist(), strict=True)
        )
        assert plan.ring.gb_per_s <= min(ceilings[node] for node in plan.nodes)


@given(world=worlds(), gang=gangs(), least=st.sampled_from((10.0, 25.0, 50.0)))
def test_a_demand_on_the_network_holds_between_all_nodes_of_a_gang(world, gang, least):
    demanding = GangRequest(gang.roles, gang.required, strategy=gang.strategy, min_network_gb_per_s=least)
    plan = world.planner.plan(demanding)
    if isinstance(plan, GangPlan):
        used = [world.tree.position[node] for node in plan.nodes]
        for a, b in itertools.combinations(used, 2):
            assert world.tree.gb_per_s(a, b) >= least or world.tree.shares_nvlink(a, b)
