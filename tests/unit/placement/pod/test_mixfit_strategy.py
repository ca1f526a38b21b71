"""The strategy mixfit of the live engine: hard rules hold, shares fill holes, and it packs like the experiment's."""

import numpy as np
import pytest
from tests.support.machines import reference

from kgwe import errors
from kgwe.model.units import amounts
from kgwe.placement.fleet.node import Gpus, Node, Request, Shape, SpotPolicy
from kgwe.placement.fleet.snapshot import Grant, Snapshot
from kgwe.placement.live.fleet import LiveFleet
from kgwe.placement.live.holding import Holding
from kgwe.placement.packing.fleet import Demand, NodeSpec, Pod
from kgwe.placement.pod.engine import Decision, Engine
from kgwe.placement.pod.mixfit_strategy import ArrivalMix
from kgwe.placement.pod.ranking import Strategy, parse_strategy
from kgwe.placement.refusal import Refusal
from kgwe.sim.packing import POLICIES, replay
from kgwe.sim.policies import registry
from kgwe.sim.report import fill
from kgwe.sim.traces import openb

GIB = 2**30
L40S = Shape(reference.pcie_pairs(4), "NVIDIA-L40S", 46068, "Ada")


def node(name, cpu_milli=64_000, **more):
    return Node(name, L40S, cpu_milli, 512 * GIB, **more)


def engine_of(*nodes):
    return Engine(Snapshot.from_nodes(nodes), strategy=Strategy.MIXFIT)


def place(engine, request) -> Decision:
    answer = engine.decide(request)
    assert isinstance(answer, Decision), answer
    engine.snapshot.commit(answer.grant)
    return answer


def share(milli, cpu_milli=1000, **more):
    return Request(Gpus(milli=milli), cpu_milli, GIB, **more)


def test_the_strategy_has_a_name():
    assert parse_strategy("mixfit") is Strategy.MIXFIT


def test_a_share_goes_where_a_hole_of_its_size_is():
    engine = engine_of(node("a"), node("b"))
    for _ in range(40):
        engine.mix.add(share(700))
        engine.mix.add(share(300))
    engine.snapshot.commit(Grant(1, share=(2, 700, 0)))
    answer = place(engine, share(300))
    assert (answer.name, answer.grant.share) == ("b", (2, 300, 0))


def test_whole_gpus_leave_whole_nodes_whole():
    engine = engine_of(node("a"), node("b"))
    engine.snapshot.commit(Grant(1, gpus=0b0001))
    for _ in range(20):
        engine.mix.add(Request(Gpus(count=4), 4000))
        engine.mix.add(Request(Gpus(count=1), 1000))
    assert place(engine, Request(Gpus(count=1), 1000)).name == "b"


def test_pods_that_eat_cpu_avoid_nodes_that_are_short_of_it():
    engine = engine_of(node("few", cpu_milli=8_000), node("many", cpu_milli=128_000))
    hungry = Request(Gpus(milli=250), 7_500, GIB)
    for _ in range(20):
        engine.mix.add(share(250, 1000))
        engine.mix.add(hungry)
    assert place(engine, hungry).name == "many"


def test_what_does_not_fit_is_refused_and_not_counted():
    engine = engine_of(node("a"))
    assert isinstance(engine.decide(Request(Gpus(count=5))), Refusal)
    assert engine.mix.arrivals == 0


def test_spot_nodes_come_last_for_a_pod_that_avoids_them():
    engine = engine_of(node("a", spot=True), node("b"))
    engine.snapshot.commit(Grant(0, share=(0, 500, 0)))
    asked = share(500, spot=SpotPolicy.AVOID)
    assert [place(engine, asked).name for _ in range(8)] == ["b"] * 8
    assert place(engine, asked).name == "a"


def test_only_offered_and_unbarred_nodes_are_chosen():
    engine = engine_of(node("a"), node("b"), node("c"))
    found = engine.decide_offered(share(500), {"b", "c"}.__contains__, excluded=np.array([False, True, False]))
    assert isinstance(found, Decision)
    assert found.name == "c"


def test_a_share_with_known_memory_gets_a_gpu_that_has_it_left():
    engine = engine_of(node("a"))
    engine.snapshot.commit(Grant(0, share=(0, 100, 40_000)))
    answer = place(engine, Request(Gpus(milli=300, share_mib=20_000)))
    assert answer.grant.share is not None
    assert answer.grant.share[0] != 0


def test_slices_and_pods_without_gpus_are_placed_too():
    engine = engine_of(node("a"))
    assert place(engine, Request(Gpus(), 1000, GIB)).name == "a"
    assert isinstance(engine.decide(Request(Gpus(profile="1g.10gb", slices=1))), Refusal)


def test_a_fleet_without_gpus_is_ranked_by_the_score():
    bare = Shape(reference.pcie_pairs(0), "", None, None)
    engine = engine_of(Node("a", bare, 1000, GIB))
    assert place(engine, Request(Gpus(), 500)).name == "a"


def test_nodes_that_divide_their_gpus_are_a_class_of_their_own():
    engine = engine_of(
        node("halves", shares_per_gpu=2), node("quarters", shares_per_gpu=4), node("whole", shares_per_gpu=0)
    )
    assert place(engine, share(500)).name == "halves"
    assert place(engine, share(250)).name == "quarters"
    assert place(engine, Request(Gpus(count=2))).name == "whole"


def test_the_mix_survives_a_change_of_the_nodes():
    fleet = LiveFleet()
    fleet.configure(fleet.weights, fleet.domain_weights, Strategy.MIXFIT)
    fleet.set_nodes([node("a")], fleet.tree)
    assert isinstance(fleet.engine.decide(share(500)), Decision)
    fleet.set_nodes([node("a"), node("b")], fleet.tree)
    assert fleet.engine.mix.arrivals == 1


def test_old_arrivals_fade():
    mix = ArrivalMix()
    for _ in range(20_000):
        mix.add(share(500))
    for _ in range(11_000):
        mix.add(share(250))
    engine = Engine(Snapshot.from_nodes([node("a")]), strategy=Strategy.MIXFIT, mix=mix)
    assert isinstance(engine.decide(share(250)), Decision)


def test_it_packs_like_the_experiment_on_generated_pods():
    """The engine learns the mix from its decisions; the experiment's MixFit knows it."""
    rng = np.random.default_rng(7)
    nodes = tuple(NodeSpec(f"n{number:03}", 96_000, 400_000, 8, "T4") for number in range(40))
    sizes = ((200, 1), (330, 1), (470, 1), (810, 1), (1000, 1), (1000, 2), (1000, 8))
    pods = []
    for _ in range(1000):
        milli, count = sizes[int(rng.choice(len(sizes), p=(0.2, 0.1, 0.2, 0.2, 0.2, 0.07, 0.03)))]
        pods.append(Pod(Demand(int(rng.integers(1, 9)) * 1000 * count, milli, count), 4096))
    trace = openb.Trace("generated", tuple(pods))
    experiment = openb.draw_experiment(trace, nodes, 1)
    known = replay.replay(experiment, openb.count_mix(trace.pods), POLICIES["MixFit"], seed=1).allocation_at(100)
    live, score = (fill.fill(experiment, registry.find_policy(name), seed=1) for name in ("kgwe-mixfit", "kgwe"))
    assert live.alloc_100 == pytest.approx(known, abs=1.0)
    assert live.alloc_100 > score.alloc_100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "gpushare40", "multigpu20"])
def test_on_the_openb_lists_it_is_within_0_3_points_of_the_experiment(name):
    try:
        folder = openb.find_folder()
    except errors.NotFound as exc:
        pytest.skip(str(exc))
    trace = openb.read_trace(folder / f"openb_pod_list_{name}.csv")
    experiment = openb.draw_experiment(trace, openb.read_nodes(folder / openb.NODE_FILE), 42)
    known = replay.replay(experiment, openb.count_mix(trace.pods), POLICIES["MixFit"], seed=42).allocation_at(100)
    assert fill.fill(experiment, registry.find_policy("kgwe-mixfit"), seed=42).alloc_100 == pytest.approx(
        known, abs=0.3
    )


def test_pods_that_run_already_are_the_mix_at_first():
    fleet = LiveFleet()
    fleet.set_nodes([node("a", shares_per_gpu=4), node("b", shares_per_gpu=0)], fleet.tree)
    fleet.hold("share", Holding("a", {amounts.SHARED: 1, amounts.CPU: 2000}))
    fleet.hold("whole", Holding("b", {amounts.GPU: 2, amounts.CPU: 8000}))
    fleet.hold("cpu", Holding("b", {amounts.CPU: 8000}))
    found = fleet.engine.decide(share(250), strategy=Strategy.MIXFIT)
    assert isinstance(found, Decision)
    assert fleet.mix.arrivals == 3


def test_the_mix_remembers_so_many_kinds_and_no_memory():
    mix = ArrivalMix()
    for cpu in range(2000):
        mix.add(Request(Gpus(count=1), cpu, GIB * cpu))
        mix.add(Request(Gpus(count=1), 7, GIB * cpu))
    found = Engine(Snapshot.from_nodes([node("a")]), strategy=Strategy.MIXFIT, mix=mix).decide(share(500))
    assert isinstance(found, Decision)
    assert len(mix._counts) <= 512
    assert max(mix._counts.values()) > 1900
