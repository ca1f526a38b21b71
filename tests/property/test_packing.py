"""Whatever arrives: nothing is oversubscribed, nothing that fits is refused, a seed gives one answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kgwe.placement.packing.fleet import Demand, Fleet, NodeSpec, Pod
from kgwe.placement.packing.policy import choose_node
from kgwe.sim.packing import POLICIES, limit, replay
from kgwe.sim.packing.fragmentation import Cause, Fragmentation
from kgwe.sim.traces import openb

MODELS = ["A10", "T4", "G2"]


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    cpu = draw(st.integers(0, 20_000))
    kind = draw(st.sampled_from(["none", "share", "share", "whole"]))
    if kind == "none":
        return Demand(cpu, 0, 0)
    spec = "|".join(draw(st.sets(st.sampled_from(MODELS), max_size=2)))
    if kind == "share":
        return Demand(cpu, draw(st.integers(1, 999)), 1, spec)
    return Demand(cpu, 1000, draw(st.sampled_from([1, 2, 4])), spec)


pods = st.builds(Pod, demands(), st.integers(0, 50_000))
nodes = st.builds(
    NodeSpec,
    st.just("n"),
    st.integers(4_000, 64_000),
    st.integers(20_000, 200_000),
    st.integers(1, 4),
    st.sampled_from(MODELS),
)


def holds(fleet: Fleet, pod: Pod) -> bool:
    """Whether any node has room, counted the slow way."""
    demand = pod.demand
    return any(
        fleet.cpu_free[n] >= demand.cpu_milli
        and fleet.memory_free[n] >= pod.memory_mib
        and demand.allows(fleet.models[fleet.model[n]])
        and sum(free >= demand.gpu_milli for free in fleet.gpus[: fleet.gpu_count[n], n]) >= demand.num_gpu
        for n in range(len(fleet))
    )


@pytest.mark.parametrize("name", list(POLICIES))
@examples(30)
@given(fleet_nodes=st.lists(nodes, min_size=1, max_size=4), arrivals=st.lists(pods, min_size=1, max_size=30))
def test_a_pod_is_refused_only_when_nothing_holds_it_and_nothing_is_oversubscribed(name, fleet_nodes, arrivals):
    fleet = Fleet(fleet_nodes)
    policy = POLICIES[name](fleet, openb.count_mix(arrivals), np.random.default_rng(3))
    for pod in arrivals:
        expected = holds(fleet, pod)
        node = choose_node(policy, fleet, pod)
        assert (node is not None) == expected
        if node is not None:
            cards = policy.choose_gpus(pod.demand, node)
            fleet.place(pod, node, cards)
            policy.on_place(pod.demand, node, cards)
        assert (fleet.gpus >= 0).all()
        assert (fleet.cpu_free >= 0).all()
        assert (fleet.memory_free >= 0).all()


@pytest.mark.parametrize("name", list(POLICIES))
@examples(12)
@given(fleet_nodes=st.lists(nodes, min_size=1, max_size=4), arrivals=st.lists(pods, min_size=1, max_size=20))
def test_a_seed_gives_one_answer(name, fleet_nodes, arrivals):
    experiment = openb.Experiment(tuple(fleet_nodes), tuple(arrivals))
    mix = openb.count_mix(arrivals)
    once, again = (replay.replay(experiment, mix, POLICIES[name], seed=5) for _ in range(2))
    assert (once.fleet.gpus == again.fleet.gpus).all()
    assert (once.used == again.used).all()


@given(fleet_nodes=st.lists(nodes, min_size=1, max_size=4), arrivals=st.lists(pods, min_size=1, max_size=20))
def test_causes_sum_to_idle_exactly_and_agree_with_the_fragment(fleet_nodes, arrivals):
    mix = openb.count_mix(arrivals)
    experiment = openb.Experiment(tuple(fleet_nodes), tuple(arrivals))
    fleet = replay.replay(experiment, mix, POLICIES["BestFit"], seed=1).fleet
    everywhere = np.arange(len(fleet))
    fragmentation = Fragmentation(fleet, mix)
    causes = fragmentation.by_cause(everywhere)
    assert sum(causes.values()) == int(fleet.gpu_free.sum()) * mix.total
    lost = sum(causes.values()) - causes[Cause.USABLE]
    assert lost / mix.total == pytest.approx(fragmentation.of_nodes(everywhere).sum())


@given(st.dictionaries(st.integers(1, 100).map(lambda n: n * 10), st.integers(1, 50), min_size=1, max_size=8))
def test_the_limit_lies_between_the_volume_and_first_fit(asked):
    items = sorted((milli for milli, count in asked.items() for _ in range(count)), reverse=True)
    cards: list[int] = []
    for milli in items:
        place = next((i for i, free in enumerate(cards) if free >= milli), None)
        if place is None:
            cards.append(1000 - milli)
        else:
            cards[place] -= milli
    assert sum(items) / 1000 - 1e-6 <= limit.fewest_cards(asked) <= len(cards) + 1e-6


def test_a_share_that_fits_by_less_than_a_step_takes_the_gpu_that_holds_it():
    """741 of 749 free milli: by the steps in which MixFit counts, no GPU has room."""
    fleet = Fleet([NodeSpec("n", 4000, 20_000, 2, "A10")])
    pods = [Pod(Demand(0, milli, 1), 0) for milli in (900, 251, 741)]
    policy = POLICIES["MixFit"](fleet, openb.count_mix(pods), np.random.default_rng(3))
    fleet.place(pods[0], 0, (0,))
    fleet.place(pods[1], 0, (1,))
    policy.on_place(pods[1].demand, 0, (1,))
    assert choose_node(policy, fleet, pods[2]) == 0
    assert policy.choose_gpus(pods[2].demand, 0) == (1,)
