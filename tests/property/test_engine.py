"""Whatever runs in a fleet: what fits is granted, what is granted fits, and remembering changes no decision."""

import dataclasses
import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.machines import reference

from kgwe.bench.placement.naive import Loop
from kgwe.model.gpu import bandwidth, catalog
from kgwe.model.gpu.mig import parse_placement
from kgwe.model.gpu.topology import Relation, Slot, Wiring
from kgwe.placement.fleet.constraints import Constraints
from kgwe.placement.fleet.node import GPU_MILLI, Gpus, Node, Preference, Request, Shape
from kgwe.placement.fleet.snapshot import Snapshot, list_gpus
from kgwe.placement.fleet.taints import Taint, Toleration
from kgwe.placement.pod.engine import Decision, Engine
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.pod.ranking import Strategy
from kgwe.placement.refusal import Refusal

A100 = catalog.find_model("A100-SXM4-80GB")
assert A100.geometry is not None
CUT = tuple(parse_placement(A100.geometry, text) for text in ("3g.40gb@0", "2g.20gb@4", "1g.10gb@6"))
UNKNOWN = Wiring(tuple(Slot(f"b{i}") for i in range(4)))
# Two bridged pairs and one link between them: the fastest pair is not on every free mask the best to keep.
BRIDGED = Wiring(reference.pcie_pairs(4).slots, 4, mesh=((0, 1, 4), (1, 2, 6), (2, 3, 4)))

SHAPES = (
    Shape(reference.nvswitch(8), "NVIDIA-H100-80GB-HBM3", 81559, "Hopper"),
    Shape(reference.pcie_pairs(4), "NVIDIA-L40S", 46068, "Ada"),
    Shape(BRIDGED, "NVIDIA-A100-PCIe", 40960, "Ampere"),
    Shape(reference.nvswitch(4, links=12, version=3), A100.label, A100.memory_mib, "Ampere", A100.geometry),
    Shape(UNKNOWN, "Mystery", None, None),
    Shape(Wiring(()), "", None, None),
)

nodes = st.lists(
    st.builds(
        lambda shape, cpu, memory, pods, healthy, cut, zone, taint, ready: (
            shape,
            cpu * 1000,
            memory << 30,
            pods,
            healthy,
            dict.fromkeys(list_gpus(cut & shape.all_gpus), CUT) if shape.geometry else {},
            {"zone": zone},
            (Taint("gpu", "", "NoSchedule"),) if taint else (),
            ready,
        ),
        st.sampled_from(SHAPES),
        st.integers(1, 64),
        st.integers(1, 256),
        st.integers(1, 6),
        st.sampled_from([-1, -1, -1, 0b1011, 0b0110]),
        st.sampled_from([0, 1, 3, 15]),
        st.sampled_from("ab"),
        st.sampled_from([False, False, True]),
        st.sampled_from([True, True, True, False]),
    ),
    min_size=1,
    max_size=6,
)

gpus = st.one_of(
    st.builds(lambda count: Gpus(count=count), st.sampled_from([1, 1, 2, 3, 4, 8])),
    st.builds(lambda milli, mib: Gpus(milli=milli, share_mib=mib), st.integers(1, 999), st.sampled_from([0, 9000])),
    st.builds(lambda p, n: Gpus(profile=p, slices=n), st.sampled_from(["1g.10gb", "3g.40gb"]), st.integers(1, 2)),
    st.just(Gpus()),
)
requests = st.builds(
    Request,
    gpus,
    st.sampled_from([0, 1000, 7000]),
    st.sampled_from([0, 1 << 30, 20 << 30]),
    st.sampled_from(list(Preference)),
    st.sampled_from([0.0, 0.0, 0.0, 20.0, 150.0, 700.0]),
    st.sampled_from([0, 0, 0, 44]),
    st.sampled_from(["", "", "", "H100", "nvidia a100"]),
    st.sampled_from(["", "", "", "ampere"]),
    st.sampled_from(
        [
            Constraints(),
            Constraints(tolerations=(Toleration(operator="Exists"),)),
            Constraints(selector=(("zone", "a"),)),
            Constraints(avoid=frozenset({"n0"})),
        ]
    ),
)


def snapshot_of(listed):
    return Snapshot.from_nodes(
        Node(f"n{i}", shape, cpu, memory, pods, labels, taints, ready, healthy, cut)
        for i, (shape, cpu, memory, pods, healthy, cut, labels, taints, ready) in enumerate(listed)
    )


def churn(snapshot, steps):
    """Book or take back, as the numbers say; every grant the fitter makes must be booked without complaint."""
    fitter, held = Fitter(snapshot), []
    for request, where in steps:
        grant = fitter.find_grant(request, where % len(snapshot))
        if grant is not None:
            held.append(snapshot.commit(grant))
        elif held:
            held.pop(where % len(held))()
    return held


steps = st.lists(st.tuples(requests, st.integers(0, 30)), max_size=12)


def meets(shape, cards, request):
    """The requirements on a set of cards, from their definitions."""
    wiring, pairs = shape.wiring, list(itertools.combinations(cards, 2))
    match request.preference:
        case Preference.NVLINK_REQUIRED:
            fine = all(wiring.nvlinks(a, b) for a, b in pairs)
        case Preference.SAME_NUMA:
            numas = {wiring.slots[card].numa for card in cards}
            fine = len(cards) == 1 or (len(numas) == 1 and None not in numas)
        case Preference.SAME_PCIE_SWITCH:
            fine = all(wiring.pcie_relation(a, b) in {Relation.PIX, Relation.PXB} for a, b in pairs)
        case _:
            fine = True
    return fine and bandwidth.set_gb_per_s(wiring, cards) >= request.min_bandwidth_gbps


def could_give(snapshot, node, request):
    """Whether any grant at all would do, by trying them."""
    wanted, shape = request.gpus, snapshot.nodes[node].shape
    if wanted.count:
        free = list_gpus(int(snapshot.free[node]))
        return any(meets(shape, cards, request) for cards in itertools.combinations(free, wanted.count))
    if wanted.milli:
        cards = zip(snapshot.milli[node].tolist(), snapshot.share_mib[node].tolist(), strict=True)
        return any(milli >= wanted.milli and mib >= wanted.share_mib for milli, mib in cards)
    if wanted.slices:
        left = [each for (at, _), held in snapshot.free_slices.items() if at == node for each in held]
        return sum(each.profile.name == wanted.profile for each in left) >= wanted.slices
    return True


@given(nodes, steps, requests)
def test_fits_means_granted_and_granted_means_it_can_be_booked(listed, history, request):
    snapshot = snapshot_of(listed)
    churn(snapshot, history)
    fitter = Fitter(snapshot)
    for node, code in enumerate(fitter.check_nodes(request).tolist()):
        grant = fitter.find_grant(request, node)
        assert (grant is not None) == (code == FitStatus.FITS)
        assert fitter.check_nodes(request, np.array([node])).tolist() == [code]
        if grant is None:
            continue
        assert could_give(snapshot, node, request)
        if request.gpus.count:
            cards = list_gpus(grant.gpus)
            assert len(cards) == request.gpus.count
            assert meets(snapshot.nodes[node].shape, cards, request), "required is never relaxed"
        snapshot.commit(grant)()


@given(nodes, steps, requests, st.sampled_from([each for each in Strategy if each is not Strategy.RANDOM]), st.data())
def test_the_best_of_those_offered_is_found_without_their_list(listed, history, request, strategy, data):
    snapshot = snapshot_of(listed * 4)  # more than are tried
    churn(snapshot, history)
    engine = Engine(snapshot)
    draws = st.lists(st.booleans(), min_size=len(snapshot), max_size=len(snapshot))
    offered, barred = (np.array(data.draw(draws), np.bool_) for _ in range(2))
    for mask in (None, barred):
        found = engine.decide_offered(
            request, lambda name: bool(offered[snapshot.index[name]]), strategy=strategy, excluded=mask
        )
        among = np.flatnonzero(offered if mask is None else offered & ~mask)
        assert found is None or found == engine.decide(request, strategy=strategy, candidates=among)
        if found is None:
            assert len(engine.list_best_nodes(request, 9, strategy=strategy)) > 8, "the best eight were not offered"
    assert engine.decide(request, strategy=strategy) == Engine(snapshot).decide(request, strategy=strategy)


def holds(verdict, snapshot, number, request):
    """Whether what the verdict claims is true of the node."""
    node, wanted = snapshot.nodes[number], request.gpus
    shape, limits = node.shape, request.constraints
    claims = {
        FitStatus.FITS: True,
        FitStatus.NOT_READY: not node.ready,
        FitStatus.NOT_ALLOWED: bool(limits.avoid or limits.selector or node.taints),
        FitStatus.WRONG_MODEL: request.model[-4:].upper() not in shape.model,
        FitStatus.WRONG_ARCHITECTURE: shape.architecture != "Ampere",
        FitStatus.GPU_MEMORY: (shape.memory_mib or 0) < max(wanted.share_mib, request.min_memory_gb * 954),
        FitStatus.TOO_FEW_GPUS: node.usable.bit_count() < max(wanted.count, 1) or wanted.slices > 0,
        FitStatus.CPU: snapshot.cpu_milli[number] < request.cpu_milli,
        FitStatus.MEMORY: snapshot.memory_bytes[number] < request.memory_bytes,
        FitStatus.PODS: snapshot.pods[number] < 1,
    }
    return claims[verdict] if verdict in claims else not could_give(snapshot, number, request)


@given(nodes, steps, requests)
def test_a_node_says_no_for_the_reason_it_gives(listed, history, request):
    snapshot = snapshot_of(listed)
    churn(snapshot, history)
    for number, code in enumerate(Fitter(snapshot).check_nodes(request).tolist()):
        assert holds(FitStatus(code), snapshot, number, request)


@given(nodes, steps, requests)
def test_what_an_empty_node_refuses_no_departure_helps(listed, history, request):
    snapshot = snapshot_of(listed)
    never = Fitter(snapshot).check_nodes(request)
    held = churn(snapshot, history)
    fitter = Fitter(snapshot)
    assert fitter.check_empty_nodes(request).tolist() == never.tolist()
    now = fitter.check_nodes(request)
    assert now[never != FitStatus.FITS].tolist() == never[never != FitStatus.FITS].tolist()
    for undo in reversed(held):
        undo()
    assert fitter.check_nodes(request).tolist() == never.tolist()


@given(nodes, steps, requests)
def test_room_is_how_many_really_go_in(listed, history, request):
    snapshot = snapshot_of(listed)
    churn(snapshot, history)
    fitter = Fitter(snapshot)
    room = fitter.count_pods(request)
    for node in range(len(snapshot)):
        placed = 0
        while (grant := fitter.find_grant(request, node)) is not None:
            snapshot.commit(grant)
            placed += 1
        assert placed == room[node]


@given(nodes, steps, st.lists(requests, min_size=1, max_size=12))
def test_decisions_oversubscribe_nothing_and_a_refusal_means_nobody_fits(listed, history, wanted):
    snapshot = snapshot_of(listed)
    churn(snapshot, history)
    engine = Engine(snapshot)
    for request in wanted:
        answer = engine.decide(request)
        if isinstance(answer, Refusal):
            assert not (Fitter(snapshot).check_nodes(request) == FitStatus.FITS).any()
            assert sum(answer.counts.values()) == len(snapshot)
            continue
        assert 0 <= answer.score.total <= 100
        assert all(0 <= part <= 100 for part in (answer.score.topology, answer.score.resource, answer.score.balance))
        snapshot.commit(answer.grant)
    assert (snapshot.cpu_milli >= 0).all()
    assert (snapshot.memory_bytes >= 0).all()
    assert (snapshot.pods >= 0).all()
    assert (snapshot.milli >= 0).all()
    assert (snapshot.milli <= GPU_MILLI).all()


@examples(60)
@given(nodes, st.lists(st.tuples(requests, st.integers(0, 30), st.sampled_from(list(Strategy))), max_size=20))
def test_a_remembered_decision_is_the_one_a_fresh_look_gives(listed, history):
    snapshot = snapshot_of(listed)
    engine, held = Engine(snapshot), []
    for request, draw, strategy in history:
        answer = engine.decide(request, strategy=strategy, rng=np.random.default_rng(draw))
        assert answer == Engine(snapshot).decide(request, strategy=strategy, rng=np.random.default_rng(draw))
        if isinstance(answer, Decision):
            held.append(snapshot.commit(answer.grant))
        if held and draw % 3 == 0:
            held.pop(draw % len(held))()


@given(nodes, steps, requests)
def test_the_choice_is_that_of_a_plain_loop_over_the_rules(listed, history, request):
    snapshot = snapshot_of(listed)
    churn(snapshot, history)
    answer = Engine(snapshot).decide(request)
    assert Loop(snapshot).decide(request) == (answer.node if isinstance(answer, Decision) else None)


@given(nodes, steps, requests.map(lambda request: dataclasses.replace(request, gpus=Gpus(count=1))))
def test_a_single_card_breaks_an_island_only_when_every_choice_does(listed, history, request):
    snapshot = snapshot_of(listed)
    churn(snapshot, history)
    engine = Engine(snapshot)
    answer = engine.decide(request)
    if isinstance(answer, Decision):
        fitting = np.flatnonzero(engine.check_nodes(request) == FitStatus.FITS)
        broken = engine.scorer.score_parts(request, fitting).broken
        assert (broken[fitting == answer.node][0] == 0) == bool((broken == 0).any())


@given(nodes, steps, requests, st.lists(st.floats(allow_nan=True), min_size=6, max_size=6))
def test_a_hint_moves_no_score_by_more_than_ten_points(listed, history, request, hints):
    snapshot = snapshot_of(listed)
    churn(snapshot, history)
    engine, hint = Engine(snapshot), np.array(hints[: len(listed)])
    plain, hinted = engine.score_nodes(request), engine.score_nodes(request, hint=hint)
    assert (np.abs(hinted - plain) <= 10 + 1e-9).all()
    assert ((hinted >= 0) & (hinted <= 100)).all()
    answer = engine.decide(request, hint=hint)
    if isinstance(answer, Decision):
        assert answer.score.total == hinted[answer.node]
        assert -10 <= answer.score.hint <= 10
