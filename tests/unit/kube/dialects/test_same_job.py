"""The same job in any dialect is the same request, and gets the same plan."""

from __future__ import annotations

import pytest
from tests.support.builders import dialect_manifests, dialect_wishes
from tests.support.builders.dialect_worlds import load
from tests.support.builders.racks import Racks, cards, placed, racks

from kgwe.placement.planning.gang_planner import GangRequest, Segment


@pytest.fixture(scope="module")
def fleet() -> Racks:
    """Two spines of two leaves; only leaf d holds all of the job."""
    return racks({"s1": {"a": [8] * 4, "b": [8] * 4}, "s2": {"c": [8] * 4 + [0] * 2, "d": [8] * 9 + [4]}})


SCENARIOS = {
    "plain": (dialect_manifests.PLAIN, GangRequest.uniform(cards(8), 8, name="train/llama")),
    "required": (dialect_wishes.REQUIRED, GangRequest.uniform(cards(8), 8, required="leaf", name="train/llama")),
    "segmented": (
        dialect_wishes.SEGMENTED,
        GangRequest.uniform(cards(8), 8, required="spine", segments=(Segment(4, "leaf"),), name="train/llama"),
    ),
    "preferred": (dialect_wishes.PREFERRED, GangRequest.uniform(cards(8), 8, preferred="leaf", name="train/llama")),
}
CASES = [
    pytest.param(text, wanted, id=f"{scenario} {dialect}")
    for scenario, (texts, wanted) in SCENARIOS.items()
    for dialect, text in texts.items()
]


@pytest.mark.parametrize(("text", "wanted"), CASES)
def test_the_same_job_is_the_same_request_and_gets_the_same_plan(text: str, wanted: GangRequest, fleet: Racks) -> None:
    world = load(text)

    gang = world.gang()

    assert gang.request == wanted
    assert list(gang.order) == sorted(world.pods, key=lambda pod: pod.metadata.name)
    plan = fleet.place(gang.request)
    assert [seat.node for seat in plan.seats] == [seat.node for seat in placed(fleet.planner, wanted).seats]
    assert [(pod, seat.rank) for pod, seat in gang.assign_pods(plan)] == [
        (pod, rank) for rank, pod in enumerate(gang.order)
    ]


def test_every_scenario_is_told_in_at_least_five_dialects():
    for texts, _ in SCENARIOS.values():
        assert len({membership.dialect for text in texts.values() for membership in load(text).memberships}) >= 5
