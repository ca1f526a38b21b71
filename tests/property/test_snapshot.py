"""A snapshot after any bookings and their undo is bit for bit what it was, and never gives anything twice."""

import contextlib
import dataclasses

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgwe import errors
from kgwe.model.gpu import catalog
from kgwe.model.gpu.mig import parse_placement
from kgwe.model.gpu.topology import Slot, Wiring
from kgwe.placement.fleet.node import GPU_MILLI, Gpus, Node, Request, Shape
from kgwe.placement.fleet.snapshot import Grant, Snapshot, list_gpus
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus

A100 = catalog.find_model("A100-SXM4-80GB")
WIRING = Wiring(slots=tuple(Slot(f"00000000:{i:02X}:00.0") for i in range(8)))
SHAPE = Shape(WIRING, A100.name, A100.memory_mib, str(A100.architecture), A100.geometry)
assert A100.geometry is not None
CUT = tuple(parse_placement(A100.geometry, text) for text in ("3g.40gb@0", "2g.20gb@4"))


def fleet(count=3):
    nodes = [Node(f"n{i}", SHAPE, 64_000, 2**38, 10, cut={7: CUT} if i == 0 else {}) for i in range(count)]
    return Snapshot.from_nodes(nodes)


def state(snapshot):
    arrays = (
        snapshot.free,
        snapshot.cpu_milli,
        snapshot.memory_bytes,
        snapshot.pods,
        snapshot.milli,
        snapshot.share_mib,
    )
    slices = {name: counts.tolist() for name, counts in snapshot.slices.items()}
    return [array.tolist() for array in arrays], slices, {key: list(held) for key, held in snapshot.free_slices.items()}


shares = st.tuples(st.integers(0, 7), st.integers(1, 999), st.integers(0, 40_000))
held = st.one_of(
    st.fixed_dictionaries({"gpus": st.integers(0, 255)}),
    st.fixed_dictionaries({"share": shares}),
    st.fixed_dictionaries({"slices": st.sampled_from([((7, CUT[0]),), ((7, CUT[1]),), ((7, CUT[0]), (7, CUT[1]))])}),
)
grants = st.builds(
    lambda node, cpu, memory, what: Grant(node, cpu, memory, **what),
    st.integers(0, 2),
    st.integers(0, 20_000),
    st.integers(0, 2**36),
    held,
)


@given(st.lists(grants, max_size=25))
def test_undone_in_reverse_it_is_what_it_was(wanted):
    snapshot = fleet()
    before, undos = state(snapshot), []
    for grant in wanted:
        held = state(snapshot)
        try:
            undos.append(snapshot.commit(grant))
        except errors.InvariantBroken:
            assert state(snapshot) == held, "a refused booking changes nothing"
    for undo in reversed(undos):
        undo()
    assert state(snapshot) == before


@given(st.lists(grants, max_size=40))
def test_nothing_is_ever_given_twice(wanted):
    snapshot = fleet()
    booked: list[Grant] = []
    for grant in wanted:
        try:
            snapshot.commit(grant)
        except errors.InvariantBroken:
            continue
        booked.append(grant)
    for node in range(3):
        mine = [grant for grant in booked if grant.node == node]
        held = np.zeros(8, dtype=int)
        for grant in mine:
            for card in list_gpus(grant.gpus):
                held[card] += GPU_MILLI
            if grant.share:
                held[grant.share[0]] += grant.share[1]
        assert held.max(initial=0) <= GPU_MILLI
        assert sum(g.cpu_milli for g in mine) <= 64_000
        assert len(mine) <= 10
        for card in range(8):
            is_free = bool(int(snapshot.free[node]) >> card & 1)
            assert is_free == (held[card] == 0 and not (node == 0 and card == 7))


@given(st.lists(grants, max_size=8))
def test_all_or_none(wanted):
    snapshot = fleet()
    before = state(snapshot)
    try:
        undo = snapshot.commit_all(wanted)
    except errors.InvariantBroken:
        assert state(snapshot) == before
    else:
        undo()
        assert state(snapshot) == before


def test_changed_nodes_are_known():
    snapshot = fleet()
    seen = snapshot.version
    snapshot.commit(Grant(1, gpus=1))
    assert snapshot.changed_since(seen).tolist() == [1]
    assert snapshot.changed_since(snapshot.version).tolist() == []


@pytest.mark.parametrize("bad", [{"count": 1, "milli": 5}, {"milli": 1000}, {"profile": "1g.10gb"}, {"count": -1}])
def test_a_request_that_makes_no_sense_is_refused(bad):
    with pytest.raises(ValueError, match=r"ask for|go together"):
        Request(Gpus(**bad))


def test_a_grant_of_two_kinds_is_refused():
    with pytest.raises(errors.InvariantBroken, match="one kind"):
        Grant(0, gpus=1, share=(0, 500, 0))


@given(grants)
@example(Grant(0, share=(7, 1, 0)))
@example(Grant(0, gpus=1 << 7))
def test_what_is_not_booked_cannot_be_given_back(grant):
    snapshot = fleet()
    before = state(snapshot)
    if grant.gpus or grant.share or grant.slices:
        with pytest.raises(errors.InvariantBroken, match="not booked"):
            snapshot.release(grant)
    assert state(snapshot) == before


@given(st.lists(grants, max_size=6), st.sampled_from((0, 4_000)), st.sampled_from((0, 2**33)))
def test_an_overbooked_node_keeps_away_only_who_asks_for_what_is_gone(held, cpu, memory):
    snapshot = fleet()
    for grant in held:
        with contextlib.suppress(errors.InvariantBroken):
            snapshot.book(
                dataclasses.replace(grant, cpu_milli=4 * grant.cpu_milli, memory_bytes=8 * grant.memory_bytes)
            )
    fitter, request = Fitter(snapshot), Request(Gpus(count=1), cpu, memory)
    verdicts, room = fitter.check_nodes(request), fitter.count_pods(request)
    for node in range(len(snapshot)):
        enough = (not cpu or snapshot.cpu_milli[node] >= cpu) and (not memory or snapshot.memory_bytes[node] >= memory)
        fits = bool(snapshot.free[node]) and snapshot.pods[node] > 0 and enough
        assert (verdicts[node] == FitStatus.FITS) == fits == bool(room[node])
        if fits:
            snapshot.commit(fitter.build_grant(request, node))()
