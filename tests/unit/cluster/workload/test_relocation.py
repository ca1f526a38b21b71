"""Pods that are not where the plan of their gang wants them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.support.builders.objects import ONE, TWO, job, pod
from tests.support.fakes.recording_client import RecordingClient

from kgwe import errors
from kgwe.cluster.workload import metadata_keys, placement_annotations, relocation
from kgwe.cluster.workload.runs import read_job
from kgwe.model.devices import assignment
from kgwe.placement.planning.plan import Seat


def names(run, *pods, sick=None):
    def cards(pod):
        return assignment.parse_planned(pod.metadata.annotations).gpus

    return [
        each.metadata.name
        for each in relocation.find_misplaced(run, pods, lambda node: (sick or {}).get(node, 0), cards)
    ]


@pytest.fixture
def run():
    return read_job(job(seats=TWO))


def in_round(run, number):
    annotations = run.meta.annotations | {metadata_keys.ROUND_ANNOTATION: str(number)}
    return replace(run, meta=msgspec.structs.replace(run.meta, annotations=annotations))


def test_pods_in_their_places_are_none(run):
    assert names(run, pod("a", at="n1", index=0), pod("b", at="n2", index=1)) == []


def test_a_pod_whose_seat_is_elsewhere_is_one_whether_bound_or_held_there(run):
    held = pod("held", at="", index=1, gated=False, phase="Pending")
    spec: dict[str, Any] = {}
    placement_annotations.pin_to_node(spec, "n1")
    affinity = msgspec.convert(spec["affinity"], type(held.spec.affinity))
    held = msgspec.structs.replace(held, spec=msgspec.structs.replace(held.spec, affinity=affinity))
    assert names(run, pod("bound", at="n1", index=1), held) == ["bound", "held"]


def test_a_pod_that_waits_for_its_seat_is_none(run):
    assert names(run, pod("a", at="", index=1, gated=True, phase="Pending")) == []
    assert names(run, pod("b", at="", index=1, phase="Pending")) == []


def test_a_pod_of_an_earlier_round_is_one(run):
    again = in_round(run, 2)
    assert names(again, pod("a", at="n1", index=0)) == ["a"]
    assert names(again, pod("b", at="n1", index=0, notes={metadata_keys.ROUND_ANNOTATION: "1"})) == ["b"]
    assert names(again, pod("c", at="n1", index=0, notes={metadata_keys.ROUND_ANNOTATION: "2"})) == []
    assert names(run, pod("d", at="n1", index=0, notes={metadata_keys.ROUND_ANNOTATION: "nonsense"})) == []


def test_a_pod_on_a_sick_card_is_one_once_its_seat_has_others(run):
    mine = pod("a", at="n1", index=0, notes={placement_annotations.CARDS_ANNOTATION: "f"})
    assert names(run, mine, sick={"n1": 0b1}) == ["a"], "its seat has the upper four"
    assert names(run, mine, sick={"n1": 0b10000}) == [], "not one of its cards"
    on_it = pod("b", at="n1", index=0, notes={placement_annotations.CARDS_ANNOTATION: "f0"})
    assert names(run, on_it, sick={"n1": 0b10000}) == [], "its seat has no others yet"


def test_a_single_pod_is_held_by_its_job_and_cannot_stray():
    assert names(read_job(job(seats=ONE)), pod("a", at="n2")) == []


def test_pods_without_a_number_or_with_one_too_large_are_left_alone(run):
    assert names(run, pod("a", at="n9"), pod("b", at="n9", index=7)) == []


def test_the_round_is_written_with_the_seat(run):
    patch: dict[str, Any] = {"metadata": {"annotations": {}}}
    assert relocation.mark_round(patch, run) == {"metadata": {"annotations": {}}}
    assert relocation.mark_round(patch, None) == {"metadata": {"annotations": {}}}
    assert relocation.mark_round(patch, in_round(run, 3)) == {
        "metadata": {"annotations": {metadata_keys.ROUND_ANNOTATION: "3"}}
    }


def client_of(stored: Any, conflicts: int = 0) -> Any:
    """A client that refuses so many patches as stale, and shows the object as it is then."""
    return RecordingClient(*(errors.Conflict("stale") for _ in range(conflicts)), stored=stored)


NEW = {placement_annotations.PLAN_ANNOTATION: placement_annotations.encode((Seat("n3"), Seat("n2")))}


async def test_a_plan_is_stored_with_the_version_it_replaces(run):
    client = client_of(job(seats=TWO))
    assert await relocation.store_plan(client, run, TWO, NEW)
    assert [body for _, body in client.patches] == [{"metadata": {"resourceVersion": "", "annotations": NEW}}]


async def test_a_stale_version_is_read_again(run):
    client = client_of(job(seats=TWO), conflicts=2)
    assert await relocation.store_plan(client, run, TWO, NEW)
    assert len(client.attempts) == 3


@pytest.mark.parametrize(
    "stored", [pytest.param(job(seats=ONE, pods=2), id="another plan"), pytest.param(job("job-2"), id="another run")]
)
async def test_it_replaces_no_other_plan_and_no_other_run(run, stored):
    client = client_of(stored, conflicts=1)
    assert not await relocation.store_plan(client, run, TWO, NEW)
    assert len(client.attempts) == 1
