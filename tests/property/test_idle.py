"""The idle GPU of a fleet is split without rest, whatever is cut, sick, reserved, asked for together or elsewhere."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests import machines
from tests.small_fleet import CUT, SHAPE

from kgwe.model import domains
from kgwe.placement import idle
from kgwe.placement.constraints import Constraints
from kgwe.placement.fit import Fitter, Verdict
from kgwe.placement.fragmentation import Fragmentation
from kgwe.placement.gang import GangRequest
from kgwe.placement.node import CARD_MILLI, Gpus, Node, Preference, Request, Shape
from kgwe.placement.packing.fleet import Demand, Fleet, NodeSpec
from kgwe.placement.packing.policy import Mix
from kgwe.placement.snapshot import Snapshot

PCIE = Shape(machines.pcie_pairs(2), "L4", 24_000, "Ada")

requests = st.builds(
    Request,
    st.one_of(
        st.builds(Gpus, count=st.integers(1, 4)),
        st.builds(Gpus, milli=st.integers(1, 999), share_mib=st.sampled_from((0, 10_000, 50_000))),
        st.builds(Gpus, profile=st.sampled_from(("1g.10gb", "3g.40gb", "7g.80gb")), slices=st.integers(1, 2)),
        st.just(Gpus()),
    ),
    cpu_milli=st.sampled_from((0, 1_000, 3_000)),
    memory_bytes=st.sampled_from((0, 2**32)),
    preference=st.sampled_from((Preference.NONE, Preference.NVLINK_REQUIRED, Preference.SAME_NUMA)),
    model=st.sampled_from(("", "", "L4")),
    constraints=st.sampled_from((Constraints(), Constraints(), Constraints(selector=(("pool", "a"),)))),
)
work = st.one_of(
    requests,
    st.builds(
        GangRequest.of,
        requests,
        st.integers(1, 4),
        required=st.sampled_from(("", "node", "leaf")),
        max_gpus_per_leaf=st.sampled_from((0, 2)),
    ),
)


@st.composite
def fleets(draw):
    nodes, places = [], []
    for number in range(draw(st.integers(1, 4))):
        shape = draw(st.sampled_from((SHAPE, PCIE)))
        nodes.append(
            Node(
                f"n{number}",
                shape,
                cpu_milli=draw(st.sampled_from((1_000, 6_000))),
                memory_bytes=2**33,
                pods=draw(st.integers(1, 6)),
                labels={"pool": draw(st.sampled_from(("a", "b")))},
                ready=draw(st.sampled_from((True, True, True, False))),
                healthy=draw(st.sampled_from((-1, -1, 0b0110, 0))),
                cut=dict.fromkeys(range(draw(st.integers(0, 2))), CUT) if shape is SHAPE else {},
            )
        )
        places.append(domains.Place(f"n{number}", (draw(st.sampled_from(("x", "y", ""))),)))
    return Snapshot.of(nodes), domains.build(places, ("leaf",))


def milli_of(grant):
    """CUT covers seven of eight units, side by side from the first."""
    slices = sum(placed.profile.units * CARD_MILLI // 8 for _, placed in grant.slices)
    return grant.cards.bit_count() * CARD_MILLI + (grant.share[1] if grant.share else 0) + slices


@given(fleets(), st.lists(requests, max_size=8), st.lists(st.tuples(work, st.integers(1, 3)), max_size=4), st.data())
def test_parts_sum_to_what_is_idle_exactly(fleet, running, mix, data):
    snapshot, tree = fleet
    fitter = Fitter(snapshot)
    held, reserved = 0, []
    for request in running:
        fits = np.flatnonzero(fitter.verdicts(request) == Verdict.FITS)
        if len(fits):
            grant = fitter.grant(request, int(fits[0]))
            assert grant is not None
            snapshot.commit(grant)
            if data.draw(st.booleans()):
                reserved.append(grant)
            else:
                held += milli_of(grant)
    holes = data.draw(st.sampled_from((None, {}, {(0, 0): 60})))
    found = idle.split(fitter, tree, mix, reserved=reserved, holes=holes)
    assert found.milli == sum(node.shape.cards for node in snapshot.nodes) * CARD_MILLI - held
    assert sum(found.amounts.values()) == found.milli * found.pods
    assert all(amount > 0 for amount in found.amounts.values())
    assert found == idle.split(Fitter(snapshot), tree, mix, reserved=reserved, holes=holes)


@given(
    st.lists(
        st.tuples(st.integers(0, 8_000), st.lists(st.integers(0, 9), min_size=4, max_size=4)), min_size=1, max_size=4
    ),
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=4),
)
def test_without_cuts_and_domains_it_is_the_measure_of_packing(drawn, asked):
    """Nodes of four cards with tenths taken, and pods that ask for CPU and cards or tenths."""
    nodes = [Node(f"n{i}", SHAPE, 8_000, 2**40) for i in range(len(drawn))]
    snapshot = Snapshot.of(nodes)
    fleet = Fleet([NodeSpec(node.name, node.cpu_milli, 2**20, 4, node.shape.model) for node in nodes])
    for number, (cpu, tenths) in enumerate(drawn):
        snapshot.cpu_milli[number] = fleet.cpu_free[number] = cpu
        for card, taken in enumerate(tenths):
            snapshot.milli[number, card] -= taken * 100
            snapshot.free[number] &= ~np.uint32(bool(taken) << card)
            fleet.cards[card, number] -= taken * 100
    demands = {}
    for cpu, count, tenths in asked:
        gpus = Gpus(milli=tenths * 100) if count == 1 and tenths else Gpus(count=count)
        demand = Demand(cpu, gpus.milli or CARD_MILLI * bool(count), count)
        demands[demand] = Request(gpus, cpu)
    mix = Mix(tuple(demands), tuple(range(1, len(demands) + 1)))
    tree = domains.build([domains.Place(node.name) for node in nodes], ())
    found = idle.split(Fitter(snapshot), tree, list(zip(demands.values(), mix.counts.tolist(), strict=True)))
    expected = Fragmentation(fleet, mix).by_cause(np.arange(len(fleet)))
    assert found.amounts == {cause: amount for cause, amount in expected.items() if amount}
