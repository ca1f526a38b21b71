"""Plans as text, and what is believed of what others may have written."""

from __future__ import annotations

import base64
import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.objects import TWO, UID, deployment, job, pod, replica

from kgwe.cluster.workload import placement_annotations, plan_text, runs
from kgwe.model.devices import assignment
from kgwe.model.units.limits import MAX_GPUS_PER_NODE
from kgwe.placement.planning.plan import Seat

NODES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
SEATS = st.builds(
    Seat,
    NODES,
    st.integers(0, 2**MAX_GPUS_PER_NODE - 1),
    st.lists(st.tuples(st.integers(0, 31), st.integers(0, 7))).map(tuple),
)


@given(st.lists(SEATS, min_size=1, max_size=64))
def test_a_plan_survives_being_written_down(seats):
    assert placement_annotations.decode(placement_annotations.encode(seats)) == tuple(seats)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["h100-", "n", "", "ip-10-0-1-", "gke-a3-7f9-"]),
            st.sampled_from(["", ".internal", "x", ".node-1.example"]),
            st.integers(0, 1200),
            st.integers(1, 150),
            st.sampled_from([0, 3, 4]),
            st.booleans(),
            st.lists(st.tuples(st.integers(0, 2**MAX_GPUS_PER_NODE - 1), st.integers(1, 3)), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_large_plan_survives_being_written_down(rows):
    seats = [
        Seat(f"{head}{number:0{width}}{tail}", cards)
        for head, tail, first, length, width, is_down, masks in rows
        for number in (range(first + length, first, -1) if is_down else range(first, first + length))
        for cards, times in masks
        for _ in range(times)
    ]
    assert placement_annotations.decode(placement_annotations.encode(seats)) == tuple(seats)


@given(st.lists(SEATS, min_size=65, max_size=90))
def test_a_large_plan_on_any_nodes_survives_being_written_down(seats):
    assert placement_annotations.decode(placement_annotations.encode(seats)) == tuple(seats)


def test_a_small_plan_is_written_as_older_schedulers_read_it():
    seats = [Seat("n1", 0xFF), Seat("n2", 0, ((0, 0), (0, 4)))]
    assert placement_annotations.encode(seats) == "n1=ff;n2=0/0@0,0@4"
    assert len(placement_annotations.decode(";".join(f"n{number}=1" for number in range(64)))) == 64


@pytest.mark.parametrize(
    ("seats", "text"),
    [
        ([Seat(f"h100-{number:04}", 0xFF) for number in range(2048)], "2:h100-[0000-2047]=ff"),
        ([Seat(f"n{number // 4}", 1 << number % 4) for number in range(400)], "2:n[0-9]=1,2,4,8;n[10-99]=1,2,4,8"),
        ([Seat(f"n{number}.a1", 1) for number in range(900, 100, -1)], "2:n[900-101].a1=1"),
        ([Seat("n7", 0, ((0, 0), (1, 4)))] * 70, "2:n7=0/0@0+1@4*70"),
    ],
)
def test_a_plan_on_numbered_nodes_is_a_line_that_people_can_read(seats, text):
    assert placement_annotations.encode(seats) == text
    assert placement_annotations.decode(text) == tuple(seats)


def cloud_name(number):
    return f"ip-10-{number * 7919 % 256}-{number * 104729 % 251}-{number * 1299709 % 241}.eu-west-1.compute.internal"


@pytest.mark.parametrize("per_pod", [1, 8])
def test_a_hundred_thousand_gpus_on_nodes_with_names_of_a_cloud_fit_an_annotation(per_pod):
    masks = [(1 << per_pod) - 1 << start for start in range(0, 8, per_pod)]
    seats = [Seat(cloud_name(node), mask) for node in range(12_500) for mask in masks]
    assert len(seats) == 100_000 // per_pod
    text = placement_annotations.encode(seats)
    assert len(text) <= plan_text.MOST_BYTES_AT_START
    assert placement_annotations.decode(text) == tuple(seats)


def test_a_plan_that_does_not_fit_is_refused_with_the_limit():
    seats = [Seat(f"{hashlib.sha256(b'%d' % node).hexdigest()[:63]}", 1) for node in range(20_000)]
    with pytest.raises(plan_text.PlanTooLarge, match=r"plan of 20000 pods takes \d+ bytes; only 212992 fit in its Job"):
        placement_annotations.encode(seats)


@pytest.mark.parametrize(
    "text",
    [
        *("2:", "2z:", "2:n[0-1", "2:n[0-1]", "2:n[0-1]=", "2:n[0-1]=g", "2:n[0-1]=1*0", "2:n[0-1]=1*", "2:[0-1]-=1"),
        *("2:n[00-1]=1", "2:n[0-1][0-1]=1", "2:n1=1;;n2=1", "2:n1=1,", "2:N1=1", "2:n1=1ffffffffffffffff", "2z:@@@@"),
        "2z:" + base64.b64encode(b"n1=1").decode(),
    ],
)
def test_a_large_plan_that_we_would_not_write_is_not_believed(text):
    assert placement_annotations.decode(text) == ()


@pytest.mark.parametrize(
    "plain", ["n[0-999999999]=1", "n[0-99999]=1,1", "n1=1*999999", "n[0-50000]=1;m[0-50000]=1", "n[0-9999]=1*11"]
)
def test_a_text_of_more_seats_than_a_workload_may_have_is_not_expanded(plain):
    assert placement_annotations.decode(f"2:{plain}") == ()
    assert placement_annotations.decode("2z:" + base64.b64encode(zlib.compress(plain.encode())).decode()) == ()


def test_a_compressed_text_that_grows_without_end_is_not_believed():
    bomb = zlib.compress(b"n1=1;" * 10_000_000)
    assert placement_annotations.decode("2z:" + base64.b64encode(bomb).decode()) == ()


@pytest.mark.parametrize(
    "text",
    [
        *("", ";", "n1", "n1=", "n1=xyz", "n1=-1", "n1=0x1", "n1=1_0", "=1", "n1=1;n2", "n1=1;"),
        *("N1=1", "n1=1ffffffffffffffff", "n1=1/0", "n1=1/0@"),
    ],
)
def test_one_part_that_we_would_not_write_spoils_the_whole(text):
    assert placement_annotations.decode(text) == ()


@given(st.text())
def test_any_text_can_be_read(text):
    placement_annotations.decode(text)
    placement_annotations.seat_of({placement_annotations.SEAT_ANNOTATION: text})
    assignment.parse_planned(
        {placement_annotations.CARDS_ANNOTATION: text, placement_annotations.SLICES_ANNOTATION: text}
    )
    runs.parse_indexes(text, 8)


def test_a_seat_is_named_by_owner_and_number():
    assert placement_annotations.seat_of({placement_annotations.SEAT_ANNOTATION: "gang:ns/pg/x/12"}) == (
        "gang:ns/pg/x",
        12,
    )
    assert placement_annotations.seat_of({placement_annotations.SEAT_ANNOTATION: "12"}) is None
    assert placement_annotations.seat_of({}) is None


def test_cards_are_a_mask_of_no_more_than_a_node_can_have():
    assert assignment.parse_planned({placement_annotations.CARDS_ANNOTATION: "f0"}).gpus == 0xF0
    whole = 2**MAX_GPUS_PER_NODE - 1
    assert assignment.parse_planned({placement_annotations.CARDS_ANNOTATION: f"{whole:x}"}).gpus == whole
    assert assignment.parse_planned({placement_annotations.CARDS_ANNOTATION: "1ffffffffffffffff"}).gpus == 0


@pytest.mark.parametrize(
    ("text", "indexes"),
    [
        *(("", []), ("0", [0]), ("0-3,7", [0, 1, 2, 3, 7]), ("5-2", []), ("x,2", [2]), ("1-", []), ("63,64,65", [63])),
        *(("0-3,1-9", [0, 1, 2, 3]), ("9,2", [9])),
    ],
)
def test_completed_indexes_are_ranges_in_order(text, indexes):
    assert runs.parse_indexes(text, 64) == set(indexes)


def test_a_range_of_completed_indexes_is_no_larger_than_its_gang():
    assert len(runs.parse_indexes("0-999999999", 2048)) == 2048
    assert len(runs.parse_indexes("0-999999999", 2**31)) == 100_000


class TestSeatOfAPod:
    def test_pods_of_an_indexed_job_sit_by_their_index(self):
        gang = runs.read_job(job(seats=TWO))
        assert gang.seat_of(pod(index=1)) == 1
        assert gang.seat_of(pod(notes={placement_annotations.SEAT_ANNOTATION: f"{UID}/1"})) == -1, (
            "not by what they say"
        )

    def test_pods_of_a_deployment_sit_where_they_were_put(self):
        serving = runs.read_deployment(deployment())
        assert serving.seat_of(replica("a", seat=f"{UID}/1")) == 1
        assert serving.seat_of(replica("a", seat="other/1")) == -1
        assert serving.seat_of(replica("a", index=1)) == -1

    def test_the_only_pod_has_the_only_seat(self):
        assert runs.read_job(job()).seat_of(pod()) == 0
