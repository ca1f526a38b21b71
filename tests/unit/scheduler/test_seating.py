"""Plans as text, and what is believed of what others may have written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.objects import TWO, UID, deployment, job, pod, replica

from kgwe.apps.scheduler import runs, seating
from kgwe.model import places
from kgwe.placement.node import MOST_CARDS
from kgwe.placement.planning import Seat

NODES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
SEATS = st.builds(
    Seat,
    NODES,
    st.integers(0, 2**MOST_CARDS - 1),
    st.lists(st.tuples(st.integers(0, 31), st.integers(0, 7))).map(tuple),
)


@given(st.lists(SEATS, min_size=1, max_size=64))
def test_a_plan_survives_being_written_down(seats):
    assert seating.decode(seating.encode(seats)) == tuple(seats)


@pytest.mark.parametrize(
    "text",
    [
        *("", ";", "n1", "n1=", "n1=xyz", "n1=-1", "n1=0x1", "n1=1_0", "=1", "n1=1;n2", "n1=1;"),
        *("N1=1", "n1=1ffffffffffffffff", "n1=1/0", "n1=1/0@"),
    ],
)
def test_one_part_that_we_would_not_write_spoils_the_whole(text):
    assert seating.decode(text) == ()


@given(st.text())
def test_any_text_can_be_read(text):
    seating.decode(text)
    seating.seat_of({seating.SEAT_ANNOTATION: text})
    places.planned({seating.CARDS_ANNOTATION: text, seating.SLICES_ANNOTATION: text})
    runs.parse_indexes(text)


def test_a_seat_is_named_by_owner_and_number():
    assert seating.seat_of({seating.SEAT_ANNOTATION: "gang:ns/pg/x/12"}) == ("gang:ns/pg/x", 12)
    assert seating.seat_of({seating.SEAT_ANNOTATION: "12"}) is None
    assert seating.seat_of({}) is None


def test_cards_are_a_mask_of_no_more_than_a_node_can_have():
    assert places.planned({seating.CARDS_ANNOTATION: "f0"}).cards == 0xF0
    whole = 2**MOST_CARDS - 1
    assert places.planned({seating.CARDS_ANNOTATION: f"{whole:x}"}).cards == whole
    assert places.planned({seating.CARDS_ANNOTATION: "1ffffffffffffffff"}).cards == 0


@pytest.mark.parametrize(
    ("text", "indexes"), [("", []), ("0", [0]), ("0-3,7", [0, 1, 2, 3, 7]), ("5-2", []), ("x,2", [2]), ("1-", [])]
)
def test_completed_indexes_are_ranges(text, indexes):
    assert runs.parse_indexes(text) == set(indexes)


def test_a_range_of_completed_indexes_is_no_larger_than_a_gang_can_be():
    assert len(runs.parse_indexes("0-999999999")) == 65


class TestSeatOfAPod:
    def test_pods_of_an_indexed_job_sit_by_their_index(self):
        gang = runs.of_job(job(seats=TWO))
        assert gang.seat_of(pod(index=1)) == 1
        assert gang.seat_of(pod(notes={seating.SEAT_ANNOTATION: f"{UID}/1"})) == -1, "not by what they say"

    def test_pods_of_a_deployment_sit_where_they_were_put(self):
        serving = runs.of_deployment(deployment())
        assert serving.seat_of(replica("a", seat=f"{UID}/1")) == 1
        assert serving.seat_of(replica("a", seat="other/1")) == -1
        assert serving.seat_of(replica("a", index=1)) == -1

    def test_the_only_pod_has_the_only_seat(self):
        assert runs.of_job(job()).seat_of(pod()) == 0
