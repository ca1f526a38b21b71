"""What holds for exposed gangs on any fleet with unreliable nodes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.racks import cards, racks

from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.planning.gang_planner import GangPlan, GangPlanner, GangRequest
from kgwe.placement.pod.fit import Fitter

SCORES = st.sampled_from((1.0, 1.0, 1.0, 0.95, 0.7, 0.4, 0.1))


@st.composite
def beds(draw: st.DrawFn) -> tuple[GangPlanner, GangPlanner, Snapshot]:
    """The same fleet without and with its troubles."""
    free = st.lists(st.sampled_from((0, 4, 8, 8)), min_size=1, max_size=4)
    drawn = {spine: {f"{spine}{leaf}": draw(free) for leaf in "ab"} for spine in "st"}
    bed = racks(drawn)
    snapshot = Snapshot.from_nodes([replace(node, reliability=draw(SCORES)) for node in bed.snapshot.nodes])
    snapshot.commit_all(list(bed.held.values()))
    return bed.planner, GangPlanner(Fitter(snapshot), bed.tree), snapshot


gangs = st.builds(
    lambda pods, each, required: GangRequest.uniform(cards(each), pods, required=required),
    st.integers(1, 5),
    st.sampled_from((2, 4, 8)),
    st.sampled_from(("", "leaf", "spine")),
)


@given(beds(), gangs)
def test_caution_costs_nothing_that_was_asked_for(bed, gang):
    well, troubled, snapshot = bed
    before = snapshot.free.tolist()
    plain, careful = well.plan(gang), troubled.plan(replace(gang, exposed=True))
    assert isinstance(careful, GangPlan) == isinstance(plain, GangPlan)
    assert snapshot.free.tolist() == before
    if isinstance(plain, GangPlan) and isinstance(careful, GangPlan):
        assert len(careful.seats) == len(plain.seats)
        assert careful.level == plain.level
        assert careful.ring.gb_per_s >= plain.ring.gb_per_s * 0.99
        snapshot.commit_all(careful.grants)  # it fits


@given(beds(), gangs)
def test_the_careful_plan_is_never_less_reliable_where_it_says_so(bed, gang):
    _, troubled, snapshot = bed
    plain, careful = troubled.plan(gang), troubled.plan(replace(gang, exposed=True))
    if not (isinstance(plain, GangPlan) and isinstance(careful, GangPlan)):
        return
    worst = [min(snapshot.reliability[snapshot.index[name]] for name in plan.nodes) for plan in (plain, careful)]
    if careful.reliability_note.startswith("avoids"):
        assert worst[1] > worst[0]
    else:
        assert careful.nodes == plain.nodes
        assert bool(careful.reliability_note) == (worst[1] < 0.9)


@given(beds(), gangs)
def test_a_fleet_without_trouble_is_planned_as_ever(bed, gang):
    well, _, _ = bed
    plain, careful = well.plan(gang), well.plan(replace(gang, exposed=True))
    if isinstance(plain, GangPlan) and isinstance(careful, GangPlan):
        assert careful == plain
