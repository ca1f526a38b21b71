"""Requests at the limits of what can be read, on fleets of next to nothing: every decider answers, and no other work
is affected.
"""

from __future__ import annotations

import random
import traceback
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.machines.reference import nvswitch

from kgwe import errors
from kgwe.apps.scheduler.planning.cycle import PlanningCycle
from kgwe.model.gpu import mig
from kgwe.model.network import domains
from kgwe.model.units import amounts
from kgwe.placement.disruption.defrag import Rules, Waiting, plan_defrag
from kgwe.placement.disruption.preemption import plan_preemption
from kgwe.placement.disruption.recovery import Failure, plan_recovery
from kgwe.placement.disruption.running import Member, Running
from kgwe.placement.fleet.node import Gpus, Node, Preference, Request, Shape
from kgwe.placement.gang.request import GangRequest, Segment
from kgwe.placement.live.fleet import LiveFleet
from kgwe.placement.live.holding import Holding
from kgwe.placement.live.ledger import Ledger
from kgwe.placement.live.scratch import ScratchFleet
from kgwe.placement.planning import planner
from kgwe.placement.planning.ask import Ask, TopologyRequest
from kgwe.placement.planning.plan import Plan
from kgwe.placement.refusal import Refusal

SLICE = mig.Placement(mig.Profile("1g.10gb", 1, 1, (0,), 1, 10_000), 0)
LEVELS = ("leaf", "spine")

few = st.sampled_from([0, 1, 2, 3])
amount = st.sampled_from([0, 1, 1000, 2**31, 2**32, amounts.MOST - 1, amounts.MOST])
count = st.sampled_from([1, 2, 4, 63, 64, 65, 100_000, amounts.MOST_PIECES])
pods = st.sampled_from([1, 1, 2, 3, 33, 1000, 100_000])
level = st.sampled_from(["", "leaf", "spine", "node", "nvlink", "cluster", "rack"])
gpus = st.one_of(
    st.builds(lambda n: Gpus(count=n), count),
    st.builds(lambda n: Gpus(milli=n), st.sampled_from([1, 250, 333, 500, 999])),
    st.builds(lambda n: Gpus(profile="1g.10gb", slices=n), count),
    st.builds(lambda n: Gpus(profile="9g.999gb", slices=n), count),
    st.just(Gpus()),
)
requests = st.builds(
    Request,
    gpus,
    cpu_milli=amount,
    memory_bytes=amount,
    preference=st.sampled_from(list(Preference)),
    min_bandwidth_gbps=st.sampled_from([0.0, 5e-324, 900.0, 1e308]),
    min_memory_gb=st.sampled_from([0, 1, 1024, 2**62]),
    model=st.sampled_from(["", "H100", "*", "x" * 128]),
)


@st.composite
def fleets(draw: st.DrawFn) -> LiveFleet:
    """Up to three nodes with up to three cards each, whole, divided or cut, of which some amounts are held."""
    fleet, nodes, places = LiveFleet(), [], []
    for number in range(draw(few)):
        cards = draw(few)
        shape = Shape(nvswitch(cards), "H100-SXM5-80GB", draw(st.sampled_from([None, 0, 81_920])), "hopper")
        name = f"n{number}"
        cut = {0: (SLICE,)} if cards and draw(st.booleans()) else {}
        offers = draw(st.sampled_from([0, 64_000, amounts.MOST - 1]))
        more: dict[str, Any] = {"shares_per_gpu": draw(st.sampled_from([None, 0, 2, 4])), "ready": draw(st.booleans())}
        nodes.append(Node(name, shape, offers, offers, draw(st.sampled_from([0, 1, 110])), cut=cut, **more))
        places.append(domains.Place(name, (draw(st.sampled_from(["", "a", "b"])), "s"), gb_per_s=50.0))
    fleet.set_nodes(nodes, domains.build_tree(places, LEVELS))
    return fleet


@st.composite
def asks(draw: st.DrawFn, owner: str) -> Ask:
    request, number = draw(requests), draw(pods)
    segments = (Segment(draw(st.sampled_from([1, 2, 64])), draw(level)),) if draw(st.booleans()) else ()
    return Ask(
        owner,
        request,
        planner.pod_amounts(request),
        number,
        divisible=number == 1 and draw(st.booleans()),
        ranks=draw(st.sampled_from([0, 1, 7, 2**62])),
        nearness=TopologyRequest(draw(level), draw(level), segments, max_pods_per_node=draw(few)),
        strategy=draw(st.sampled_from(["", "pack", "random", "spread", "nobodys"])),
        priority=draw(st.sampled_from([0, 1_000_000, 2**31 - 1, -(2**31)])),
        since=draw(st.sampled_from(["", "2026-01-01T00:00:00Z"])),
        namespace=draw(st.sampled_from(["x", "y"])),
        expected_s=draw(st.sampled_from([None, 1.0, 31_536_000.0])),
    )


def hold_something(fleet: LiveFleet, wanted: list[dict[str, int]]) -> None:
    for number, each in enumerate(wanted):
        if len(fleet.snapshot):
            fleet.hold(f"p{number}", Holding(fleet.snapshot.nodes[number % len(fleet.snapshot)].name, each))


holding = st.builds(lambda n, m: {amounts.GPU: n, amounts.MEMORY: m, amounts.CPU: m, amounts.PODS: 1}, few, amount)
held = st.lists(holding, max_size=3)


@examples(60)
@given(fleets(), st.lists(asks("w"), min_size=1, max_size=5), held, st.data())
def test_a_pass_over_extreme_work_fails_for_none_of_it(fleet: LiveFleet, works: list[Ask], taken: Any, data: Any):
    hold_something(fleet, taken)
    ledger = Ledger(fleet)
    passes = PlanningCycle(fleet, {}, random.Random(1))
    asked = [replace(work, owner=f"w{number}") for number, work in enumerate(works)]
    runs = data.draw(asks("runs"))
    passes.record_start(runs, 0.0)
    ledger.reserve_seats("runs", {0: Holding("n0", {amounts.PODS: 1})})
    for ask in asked:
        passes.put(ask)
    for now_s in (1000.0, 2000.0, 90_000.0):
        passes.sync_fleet(ledger, {})
        result = passes.run(now_s)
        assert not result.faults, ["".join(traceback.format_exception(fault.error)[-3:]) for fault in result.faults]
        for work, plan in result.plans:
            nodes = [seat.node for seat in plan.seats]
            ledger.commit_plan(work.key, plan.amounts_by_seat, plan.grants, nodes)
            passes.record_start(plan.ask, now_s)


# Whatever the limits are, something may go wrong that nobody thought of: these are beyond them.
beyond = st.builds(lambda ask, n: replace(ask, request=replace(ask.request, memory_bytes=n)),
                   asks("bad"), st.sampled_from([2**63, 2**64, 10**400]))  # fmt: skip


@given(beyond, st.booleans())
def test_an_error_in_one_work_leaves_the_others_alone(bad: Ask, first: bool):  # noqa: FBT001 - drawn
    fleet = LiveFleet()
    shape = Shape(nvswitch(4), "H100-SXM5-80GB", 81_920, "hopper")
    places = [domains.Place("n0", ("a", "s"), gb_per_s=50.0)]
    fleet.set_nodes([Node("n0", shape, 64_000, 2**40)], domains.build_tree(places, LEVELS))
    passes = PlanningCycle(fleet, {}, random.Random(1))
    good = [Ask(f"g{number}", Request(Gpus(count=2)), namespace="x", priority=number) for number in range(3)]
    for ask in [bad, *good] if first else [*good, bad]:
        passes.put(ask)
    passes.sync_fleet(Ledger(fleet), {})
    result = passes.run(1000.0)
    placed = {work.key for work, _ in result.plans}
    assert {"g1", "g2"} <= placed
    assert {ask.owner for ask, _ in result.refusals} | placed == {"bad", "g0", "g1", "g2"}
    assert {fault.owner for fault in result.faults} <= {"bad"}


@examples(60)
@given(fleets(), asks("w"), held)
def test_plans_of_every_kind_answer(fleet: LiveFleet, ask: Ask, taken: Any):
    hold_something(fleet, taken)
    running = [
        Running(key, (Member(key, Request(Gpus(count=1)), grant),), 0)
        for key in (f"p{number}" for number in range(len(taken)))
        for grant in fleet.grants(key)
    ]
    assert isinstance(planner.make_plan(fleet, ask, rng=random.Random(1)), Plan | Refusal)
    try:
        wanted: Request | GangRequest = planner.gang_request(ask) if ask.pods > 1 else ask.request
    except errors.Permanent:
        return
    copy = ScratchFleet(fleet)
    copy.sync()
    names = frozenset(fleet.snapshot.index)
    lost = [Running("w", (Member("0", ask.request, None),), gang=None)]
    plan_recovery(copy.fitter, fleet.tree, [*running, *lost], Failure(nodes=names))
    try:
        plan_preemption(copy.fitter, fleet.tree, wanted, running, 0.0, priority=5)
        plan_defrag(copy.fitter, fleet.tree, [Waiting("w", wanted, 1e6)], running, rules=Rules(1_000_000), now_s=1e6)
    except errors.Permanent:
        pass  # a level that the fleet does not have
