"""Cards are dealt like a device plugin deals them: lowest free first, whole or not at all, and kept."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.gpu_pods import NODES, START, pod

from kgwe.kube.api.meta import ObjectMeta
from kgwe.local.fleet import device_assignment, gpunodes, gpupods, models
from kgwe.model.simfleet import inventory


def offers(pool: str = "h100", *broken: gpunodes.CardFault) -> list[device_assignment.DeviceStock]:
    node = NODES[pool]
    return device_assignment.list_devices(gpunodes.gpu_node(node, "uid", broken), node.capacity())


def dealt(given: device_assignment.Grants) -> dict[str, list[int]]:
    return {uid: [grant.unit[0] for grant in grants] for uid, grants in given.items()}


def test_the_lowest_free_cards_are_given_in_order_of_start():
    later = pod("a", 2, start="2026-11-15T10:00:05Z")
    given = device_assignment.assign(offers(), [later, pod("b", 3)], {})
    assert dealt(given) == {"b": [0, 1, 2], "a": [3, 4]}


def test_a_pod_keeps_its_cards_when_an_earlier_one_ends():
    first = device_assignment.assign(offers(), [pod("a", 2), pod("b", 2)], {})
    second = device_assignment.assign(offers(), [pod("b", 2)], first)
    third = device_assignment.assign(offers(), [pod("b", 2), pod("c", 4)], second)
    assert dealt(third) == {"b": [2, 3], "c": [0, 1, 4, 5]}


def test_a_restart_with_the_memory_gives_the_same_cards():
    held = {"b": (device_assignment.Grant("main", (6, None)),)}
    assert dealt(device_assignment.assign(offers(), [pod("a"), pod("b")], held)) == {"b": [6], "a": [0]}


def test_a_pod_that_claims_cards_has_those_and_others_get_what_is_left():
    claims = gpupods.Container("main", gpupods.Resources(claims=(gpupods.ClaimUse("kgwe-gpus"),)))
    claiming = gpupods.GpuPod(
        ObjectMeta(name="b", namespace="team", uid="b", annotations={"kgwe.nvidia.io/cards": "c1"}),
        gpupods.PodSpec("node", containers=(claims,)),
        gpupods.PodStatus("Running", "2026-11-15T10:00:09Z"),
    )
    assert dealt(device_assignment.assign(offers(), [pod("a", 3), claiming], {})) == {"b": [0, 6, 7], "a": [1, 2, 3]}


def test_a_pod_that_does_not_fit_whole_gets_nothing():
    given = device_assignment.assign(offers(), [pod("a", 6), pod("b", 4, start="2026-11-15T10:00:01Z")], {})
    assert dealt(given) == {"a": [0, 1, 2, 3, 4, 5]}


def test_broken_cards_are_not_given_but_their_user_stays():
    broken = offers("h100", gpunodes.Xid(0, 79, START))
    held = {"a": (device_assignment.Grant("main", (0, None)),)}
    assert dealt(device_assignment.assign(broken, [pod("a"), pod("b")], held)) == {"a": [0], "b": [1]}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_gives_its_cards_back(phase):
    assert (
        device_assignment.assign(
            offers(), [pod("a", phase=phase)], {"a": (device_assignment.Grant("main", (0, None)),)}
        )
        == {}
    )


def test_slices_are_given_by_their_profile():
    given = device_assignment.assign(offers("a100-mig"), [pod("a", 2, resource="nvidia.com/mig-2g.20gb")], {})
    assert [grant.unit for grant in given["a"]] == [(0, 5), (1, 5)]
    assert device_assignment.assign(offers("a100-mig"), [pod("b", 1)], {}) == {}


def test_slices_offered_as_plain_gpus_are_given_as_such():
    obj = gpunodes.gpu_node(NODES["a100-mig"], "uid")
    plain = device_assignment.list_devices(obj, ["nvidia.com/gpu"])
    assert len(plain) == 24
    assert len(device_assignment.assign(plain, [pod("a", 3)], {})["a"]) == 3


@given(st.lists(st.integers(1, 8), max_size=12), st.sets(st.integers(0, 11)), st.sets(st.integers(0, 7)))
def test_no_card_is_ever_given_twice(sizes, ended, broken):
    pods = [pod(f"p{i:02}", size) for i, size in enumerate(sizes)]
    first = device_assignment.assign(offers(), pods, {})
    left = [each for i, each in enumerate(pods) if i not in ended]
    second = device_assignment.assign(offers("h100", *(gpunodes.Xid(card, 79, START) for card in broken)), left, first)
    for deal in (first, second):
        units = [grant.unit for grants in deal.values() for grant in grants]
        assert len(units) == len(set(units))
        assert {uid: len(grants) for uid, grants in deal.items()} == {
            each.metadata.uid: each.list_requests()[0][2] for each in pods if each.metadata.uid in deal
        }
    assert all(second[uid] == grants for uid, grants in first.items() if uid in {p.metadata.uid for p in left})


# --- pods -----------------------------------------------------------------------------------------------


def test_a_pod_without_gpus_wants_nothing():
    assert pod("a", 0).list_requests() == []


def test_a_bad_use_profile_is_reported_and_the_default_used():
    odd = pod("a", annotations={"kgwe.nvidia.io/use-profile": "lazy"})
    profile, problem = odd.profile()
    assert profile == pod("b").profile()[0]
    assert "no use profile 'lazy'" in problem


def test_a_pod_fails_for_memory_when_its_profile_says():
    doomed = pod("a", annotations={"kgwe.nvidia.io/use-profile": "oom-after(60s)"})
    assert doomed.fails_at_s() == dt.datetime(2026, 11, 15, 10, 1, tzinfo=dt.UTC).timestamp()
    assert pod("b").fails_at_s() is None


NOW = dt.datetime(2026, 11, 15, 10, 1, tzinfo=dt.UTC)


def test_a_pod_that_must_not_restart_has_failed():
    status = gpupods.oom_patch(pod("a"), NOW)["status"]
    assert status["phase"] == "Failed"
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    assert (ended["startedAt"], ended["finishedAt"]) == (START, "2026-11-15T10:01:00Z")


def test_a_pod_that_may_restart_starts_again():
    status = gpupods.oom_patch(pod("a", restart="OnFailure"), NOW)["status"]
    assert "phase" not in status
    container = status["containerStatuses"][0]
    assert container["restartCount"] == 1
    assert container["state"] == {"running": {"startedAt": "2026-11-15T10:01:00Z"}}
    assert container["lastState"]["terminated"]["reason"] == "OOMKilled"


# --- shared cards ----------------------------------------------------------------------------------------


SHARED = next(node for node in inventory.expand_fleet(models.load("shared"), 2) if node.pool.pieces)


def pieces(*broken: gpunodes.CardFault) -> list[device_assignment.DeviceStock]:
    return device_assignment.list_devices(gpunodes.gpu_node(SHARED, "uid", broken), SHARED.capacity(), 2)


def test_a_divided_card_is_offered_as_pieces_and_not_whole():
    assert SHARED.capacity()["nvidia.com/gpu.shared"] == "16"
    assert SHARED.capacity()["nvidia.com/gpu"] == "0"
    assert {(offer.unit[0], offer.resource) for offer in pieces()} == {(n, "nvidia.com/gpu.shared") for n in range(8)}
    assert len({offer.unit for offer in pieces()}) == 16


def test_each_pod_has_a_piece_of_its_own_and_keeps_it():
    pods = [pod(f"p{number:02}", 1, resource="nvidia.com/gpu.shared") for number in range(17)]
    given = device_assignment.assign(pieces(), pods, {})
    assert len(given) == 16, "the last waits"
    assert sorted(card for mine in dealt(given).values() for card in mine) == sorted([*range(8)] * 2)
    assert device_assignment.assign(pieces(), pods, given) == given
    fault = gpunodes.Xid(gpu=3, xid=79, since="2026-01-01T00:00:00Z")
    assert all(card != 3 for mine in dealt(device_assignment.assign(pieces(fault), pods, {})).values() for card in mine)
