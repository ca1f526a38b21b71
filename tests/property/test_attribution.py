"""Whatever drivers report, the parts of a card add up to the card."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.samples import A100, card, cut_into, machine, reading
from tests.support.examples import examples

from kgwe.apps.agent.metrics.sampler import Sampler, Surroundings
from kgwe.model.gpu.driver_data import Process
from kgwe.model.telemetry import attribution
from kgwe.model.telemetry.attribution import WHOLE, Load
from kgwe.model.telemetry.sample import Activity
from kgwe.sharing.mig import layout_graph

quick = examples(150)

PODS = ("", "a", "b", "c")
assert A100.geometry is not None
ATLAS = layout_graph.get_layout_graph(A100.geometry, layout_graph.plain_profiles(A100.geometry))
utils = st.one_of(st.none(), st.floats(0, 1), st.sampled_from([0.0, 0.01, 0.25, 0.99, 1.0, 1.5, -0.1]))
sizes = st.one_of(st.none(), st.integers(0, 90_000))
loads = st.lists(st.builds(Load, pod=st.sampled_from(PODS), util=utils, memory_mib=sizes), max_size=8)


def total(shares: attribution.TimeShares) -> int:
    return sum(part for _, part in shares.pods) + shares.other + shares.idle + shares.unknown


@st.composite
def splits(draw):
    return attribution.split_time(draw(utils), draw(loads), draw(st.sampled_from(PODS)))


@quick
@given(total=st.integers(0, 10**7), weights=st.lists(st.integers(0, 10**9), min_size=1, max_size=12))
def test_what_is_apportioned_is_all_there_and_fair(total, weights):
    parts = attribution.apportion(total, weights)
    assert sum(parts) == total
    whole = sum(weights)
    for part, weight in zip(parts, weights, strict=True):
        exact = total * weight / whole if whole else total / len(weights)
        assert abs(part - exact) <= 1 + 1e-6 * exact


@quick
@given(busy=utils, on_it=loads, holder=st.sampled_from(PODS))
def test_pods_and_idle_are_the_whole_card(busy, on_it, holder):
    shares = attribution.split_time(busy, on_it, holder)
    assert total(shares) == WHOLE
    assert {load.pod for load in on_it if load.pod} <= dict(shares.pods).keys()
    if busy is not None:
        assert shares.unknown == 0
        assert shares.busy == min(max(round(busy * WHOLE), 0), WHOLE)
    if busy is None and all(load.util is None for load in on_it):
        assert shares.unknown == WHOLE


@quick
@given(busy=st.floats(0, 1), on_it=loads)
def test_nobody_is_given_more_than_was_measured_of_it_unless_the_rest_is_shared_out(busy, on_it):
    shares = attribution.split_time(busy, on_it)
    for pod, part in shares.pods:
        mine = [load.util for load in on_it if load.pod == pod]
        measured = [min(max(util, 0.0), 1.0) for util in mine if util is not None]
        if len(measured) == len(mine):
            assert part <= sum(round(util * WHOLE) for util in measured) + 1


@quick
@given(weights=st.lists(st.integers(1, 4), max_size=7), spare=st.integers(0, 5), data=st.data())
def test_the_instances_of_a_card_and_its_uncut_rest_are_the_card(weights, spare, data):
    parts = [(weight, data.draw(splits())) for weight in weights]
    card = attribution.combine_instances(parts, sum(weights) + spare) if sum(weights) + spare else attribution.UNKNOWN
    assert total(card) == WHOLE
    if parts:
        exact = sum(weight * shares.idle for weight, shares in parts) + spare * WHOLE
        assert abs(card.idle - exact / (sum(weights) + spare)) <= 1


@quick
@given(pieces=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10)), of=st.integers(1, 16))
def test_pieces_held_and_pieces_free_are_the_card(pieces, of):
    shares = attribution.split_by_shares(pieces, of)
    assert total(shares) == WHOLE
    for pod, count in pieces.items():
        if sum(pieces.values()) <= of:
            assert abs(shares.share_of(pod) - WHOLE * count / of) <= 1


@quick
@given(size=st.integers(0, 90_000), used=st.integers(0, 100_000), on_it=loads)
def test_memory_of_pods_and_free_memory_are_the_card(size, used, on_it):
    memory = attribution.split_memory(size, used, on_it)
    assert memory is not None
    assert memory.total == size
    assert min([part for _, part in memory.pods] + [memory.other, memory.free]) >= 0


@quick
@given(
    util=st.floats(0, 1),
    clients=st.lists(st.integers(10, 20), max_size=5),
    listed=st.lists(st.integers(10, 20), unique=True, max_size=5),
    sizes=st.lists(st.integers(0, 1000), min_size=5, max_size=5),
)
def test_what_an_mps_server_did_is_handed_on_and_nothing_is_added(util, clients, listed, sizes):
    processes = [Process(1, 100, util)] + [Process(pid, sizes[i]) for i, pid in enumerate(listed)]
    pods = {pid: f"pod-{pid}" for pid in range(10, 21)}
    told = attribution.group_loads(processes, pods, {1: clients})
    assert abs(sum(load.util or 0.0 for load in told) - util) < 1e-5
    assert {load.pod for load in told if load.pod} == {pods[pid] for pid in {*clients, *listed}}


@examples(60)
@given(
    layout=st.integers(0, len(ATLAS) - 1),
    active=st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=7, max_size=7),
)
def test_every_legal_cut_of_a_card_adds_up(layout, active):
    texts = [f"{each.profile.name}@{each.start}" for each in ATLAS.layout(layout)]
    on = machine(card(0, A100, cut=cut_into(*texts)))
    around = Surroundings(
        activities={("GPU-0", number + 1): Activity(engine=share) for number, share in enumerate(active)},
        holders={f"MIG-0-{number}": [f"team/{number}"] for number in range(0, 7, 2)},
    )
    shares = Sampler().take(on, [reading(0)], 0.0, around).gpus[0].shares
    assert total(shares) == WHOLE
    measured = all(share is not None for share in active[: len(texts)])
    assert (shares.unknown == 0) == measured
