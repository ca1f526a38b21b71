"""Gangs whose first pod is being created are planned at once; whatever goes wrong, their pods are created."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fakes.offer_bed import OfferBed, is_gated, make_member, read_node

from kgwe.apps.scheduler.pods import seat_offers
from kgwe.apps.scheduler.settings import Settings, load
from kgwe.cluster.workload import placement_annotations
from kgwe.errors import Permanent
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OFFER = placement_annotations.OFFER_ANNOTATION
OWNER = "gang:team/kgwe.nvidia.io/g"


@pytest.fixture
async def bed() -> AsyncIterator[OfferBed]:
    """Two nodes with 8 GPUs each, and a leader."""
    made = OfferBed(offer_hold_seconds=0.3)
    for name in ("n1", "n2"):
        await made.node(name)
    async with made.leading():
        yield made


@pytest.fixture
async def patient_bed() -> AsyncIterator[OfferBed]:
    """The same, but no offer ends by its time during a test."""
    made = OfferBed()
    for name in ("n1", "n2"):
        await made.node(name)
    async with made.leading():
        yield made


async def until_ended(bed: OfferBed) -> None:
    async with asyncio.timeout(20):
        while bed.state.gangs.group(OWNER) is not None and bed.state.gangs.group(OWNER).offered:  # type: ignore[union-attr] # noqa: ASYNC110 - a timer of the product
            await asyncio.sleep(0.02)


async def test_each_pod_gets_its_seat_while_it_is_created(bed: OfferBed) -> None:
    pods = await asyncio.gather(*(bed.create(f"p-{number}") for number in range(4)))
    assert not any(is_gated(pod) for pod in pods)
    assert sorted(read_node(pod) for pod in pods) == ["n1", "n1", "n2", "n2"]
    assert bed.count_free() == 0
    assert {bed.state.gangs.seat(pod["metadata"]["uid"]) for pod in pods} == {(OWNER, number) for number in range(4)}
    await until_ended(bed)
    assert bed.pod_writes == 0
    assert (bed.count_offers("made"), bed.count_offers("seat"), bed.count_offers("expired")) == (1, 4, 0)


async def test_ranks_get_their_own_seats_whatever_the_order(bed: OfferBed) -> None:
    pods = {rank: await bed.create(f"x{rank}", rank=rank) for rank in (3, 1, 0, 2)}
    assert [bed.state.gangs.seat(pods[rank]["metadata"]["uid"])[1] for rank in range(4)] == [0, 1, 2, 3]  # type: ignore[index]


async def test_names_with_numbers_get_neighbouring_seats(bed: OfferBed) -> None:
    pods = {number: await bed.create(f"p-{number}") for number in (2, 0, 3, 1)}
    assert read_node(pods[0]) == read_node(pods[1])
    assert read_node(pods[2]) == read_node(pods[3])


async def test_without_room_the_pods_keep_their_gates_and_wait(bed: OfferBed) -> None:
    pods = [await bed.create(f"p-{number}", size=5) for number in range(5)]
    assert all(is_gated(pod) for pod in pods)
    await bed.node("n3")
    await bed.until(lambda: all(not is_gated(bed.pod(f"p-{number}")) for number in range(5)))
    assert not bed.find_overbooked()


async def test_seats_of_pods_that_never_come_are_free_again(bed: OfferBed) -> None:
    first = await bed.create("p-0")
    assert bed.count_free() == 0, "the whole gang has its seats"
    await until_ended(bed)
    assert bed.count_free() == 12
    assert not is_gated(first), "the pod that came keeps its seat"
    assert bed.count_offers("expired") == 1


async def test_a_namespace_that_took_no_seats_gets_no_offers_for_a_while(bed: OfferBed) -> None:
    await bed.create("p-0", size=3)
    await until_ended(bed)
    assert is_gated(await bed.create("q-0", "other", size=2))
    assert not is_gated(await bed.create("r-0", "other", size=2, namespace="innocent"))


async def test_the_pods_that_come_later_are_placed_beside_the_others(bed: OfferBed) -> None:
    await bed.create("p-0")
    await until_ended(bed)
    later = [await bed.create(f"p-{number}") for number in (1, 2, 3)]
    assert all(is_gated(pod) for pod in later)
    await bed.until(lambda: all(not is_gated(bed.pod(f"p-{number}")) for number in (1, 2, 3)))
    assert not bed.find_overbooked()


async def test_a_pod_that_was_created_without_an_answer_gets_its_seat_by_a_write(bed: OfferBed) -> None:
    await bed.create("p-0")
    await bed.store(make_member("p-1"))
    await bed.until(lambda: not is_gated(bed.pod("p-1")))
    for number in (2, 3):
        assert not is_gated(await bed.create(f"p-{number}"))
    assert bed.pod_writes == 1
    assert not bed.find_overbooked()


async def test_a_pod_whose_creation_fails_after_the_answer_holds_nothing(bed: OfferBed) -> None:
    await bed.ask(make_member("p-0", rank=0))  # a quota refuses it
    pods = [await bed.create(f"p-{number}", rank=number) for number in range(4)]
    assert not any(is_gated(pod) for pod in pods)
    assert not bed.find_overbooked()


@pytest.mark.parametrize(
    ("pod", "more"),
    [
        (make_member("p"), {"dryRun": True}),
        (make_member("p"), {"operation": "UPDATE"}),
        (make_member("p", size=100_000_000), {}),
        (make_member("p", gpus=0), {}),
        (make_member("p", rank=10**9), {}),
        (make_member("p") | {"metadata": {"annotations": {"kgwe.nvidia.io/gang": "g"}}}, {}),
        ({"metadata": 7}, {}),
    ],
)
async def test_nothing_is_reserved_for(bed: OfferBed, pod: dict[str, Any], more: dict[str, Any]) -> None:
    assert await bed.ask(pod, **more) == pod
    await until_ended(bed)
    assert bed.count_free() == 16


@pytest.mark.parametrize(
    "quota", [{"requests_nvidia_com__gpu": "15"}, {"pods": "3"}, {"count__pods": "3"}, {"pods": "x"}]
)
async def test_a_gang_beyond_its_quota_gets_no_offer(bed: OfferBed, quota: dict[str, str]) -> None:
    bed.set_quota(**quota)
    assert is_gated(await bed.create("p-0"))
    assert bed.count_free() == 16


async def test_a_gang_within_its_quota_gets_its_offer(bed: OfferBed) -> None:
    bed.set_quota(requests_nvidia_com__gpu="16")
    bed.set_quota("another", pods="0")
    assert not is_gated(await bed.create("p-0"))


async def test_pods_that_differ_end_the_offer(bed: OfferBed) -> None:
    await bed.create("p-0", size=3, gpus=2)
    assert bed.count_free() == 10
    assert is_gated(await bed.create("p-1", size=3, gpus=8))
    assert bed.count_free() == 14, "only the pod that exists has a seat"
    await bed.create("p-2", size=3, gpus=2)
    await bed.until(lambda: all(not is_gated(bed.pod(f"p-{number}")) for number in (1, 2)))
    assert not bed.find_overbooked()


async def test_two_gangs_of_one_name_get_no_more_than_one(bed: OfferBed) -> None:
    pods = [await bed.create(f"{which}-{number}", size=2) for which in ("a", "b") for number in range(2)]
    assert [is_gated(pod) for pod in pods] == [False, False, True, True]
    assert bed.count_free() == 8


async def test_a_new_leader_goes_on_with_the_pods_that_exist() -> None:
    bed = OfferBed()
    for name in ("n1", "n2"):
        await bed.node(name)
    async with bed.leading():
        old = [await bed.create(f"p-{number}") for number in range(2)]
        assert bed.count_free() == 0
    assert bed.count_free() == 8, "a standby keeps nothing for pods that do not exist"
    async with bed.leading():
        assert is_gated(await bed.create("p-2")), "it knows nothing of the offer"
        await bed.create("p-3")
        await bed.until(lambda: not is_gated(bed.pod("p-2")) and not is_gated(bed.pod("p-3")))
        assert [read_node(bed.pod(f"p-{number}")) for number in range(2)] == [read_node(pod) for pod in old]
        assert not bed.find_overbooked()


# --- attacks --------------------------------------------------------------------------------------------


def copy_offer(pod: dict[str, dict[str, dict[str, str]]], name: str, gang: str = "g") -> dict[str, object]:
    """A pod with the offer and the pin of another."""
    made = make_member(name, gang)
    made["metadata"]["annotations"][OFFER] = pod["metadata"]["annotations"][OFFER]
    return made | {"spec": pod["spec"]}


async def test_an_offer_counts_only_in_its_namespace_and_gang_and_once(bed: OfferBed) -> None:
    first = await bed.create("p-0", size=2)
    for namespace, gang in (("thief", "g"), ("team", "h"), ("team", "g")):
        stolen = await bed.store(copy_offer(first, f"copy-{gang}", gang), namespace)
        seat = bed.state.gangs.seat(stolen["metadata"]["uid"])
        assert seat is None
    assert bed.state.gangs.seat(first["metadata"]["uid"]) == (OWNER, 0)


async def test_an_offer_of_an_earlier_pod_does_not_count_later(bed: OfferBed) -> None:
    first = await bed.create("p-0", size=2)
    await bed.client.delete(resources.POD, "p-0", "team")
    await until_ended(bed)
    bed.api.now = "2099-01-01T00:00:00Z"
    again = await bed.store(copy_offer(first, "late"))
    assert bed.state.gangs.seat(again["metadata"]["uid"]) is None


async def test_an_edited_offer_does_not_count(bed: OfferBed) -> None:
    first = await bed.create("p-0", size=2)
    text = first["metadata"]["annotations"][OFFER]
    await bed.client.delete(resources.POD, "p-0", "team")
    for edited in (text.replace("g/0", "g/1"), text + " x", text[:-1], text.replace(".n", ".m"), "", " " * 4):
        pod = copy_offer(first, "forged")
        pod["metadata"]["annotations"][OFFER] = edited  # type: ignore[index]
        stored = await bed.store(pod)
        assert bed.state.gangs.seat(stored["metadata"]["uid"]) is None
        await bed.client.delete(resources.POD, "forged", "team")


async def test_many_first_pods_hold_no_seats_after_the_time_of_an_offer(bed: OfferBed) -> None:
    for number in range(20):
        await bed.create(f"a{number}-0", f"a{number}", size=2, gpus=1)
    has_seat = sum(bool(read_node(pod)) for pod in bed.objects(resources.POD))
    assert has_seat >= 2
    async with asyncio.timeout(20):
        while bed.count_free() != 16 - has_seat:  # noqa: ASYNC110 - a timer of the product
            await asyncio.sleep(0.05)
    assert is_gated(await bed.create("again-0", "again", size=2, gpus=1))


async def test_a_pod_that_differs_pauses_the_namespace_like_seats_without_pods(patient_bed: OfferBed) -> None:
    for number in range(3):
        await patient_bed.ask(make_member("p-0", f"a{number}"))
        await patient_bed.ask(make_member("p-1", f"a{number}", gpus=1))
        assert patient_bed.count_free() == 16
    assert (patient_bed.count_offers("made"), patient_bed.count_offers("expired")) == (1, 1)


async def test_a_gang_that_comes_does_not_end_the_pause_for_one_that_does_not(patient_bed: OfferBed) -> None:
    now = 1000.0
    assert patient_bed.leader is not None
    offers = patient_bed.leader.offers
    offers._clock = lambda: now

    async def offer(gang: str, size: int) -> None:
        answer = await patient_bed.ask(make_member(f"{gang}-0", gang, size, gpus=1))
        assert not is_gated(answer)
        if size == 1:
            await patient_bed.store(answer)

    def expire(gang: str) -> None:
        offers._expire(f"gang:team/kgwe.nvidia.io/{gang}")  # as its timer does

    async def is_paused(gang: str) -> bool:
        return is_gated(await patient_bed.ask(make_member(f"{gang}-0", gang, 1, gpus=1)))

    await offer("many-a", 3)
    await offer("one-a", 1)
    expire("many-a")
    expire("one-a")
    assert await is_paused("b")
    now += 61
    await offer("one-c", 1)
    await offer("many-c", 3)
    expire("one-c")
    expire("many-c")
    now += 61
    assert await is_paused("d"), "the second pause has two minutes"
    now += 60 + 3600
    await offer("one-e", 1)
    expire("one-e")
    await offer("many-f", 3)
    expire("many-f")
    now += 61
    assert not await is_paused("g"), "long after the last pause, it has a minute again"


async def test_two_gangs_get_no_more_offers_together_than_their_quota(patient_bed: OfferBed) -> None:
    patient_bed.set_quota(requests_nvidia_com__gpu="8")
    assert not is_gated(await patient_bed.ask(make_member("p-0", "a", 2)))
    assert is_gated(await patient_bed.ask(make_member("p-0", "b", 2)))
    assert patient_bed.count_free() == 8
    assert not is_gated(await patient_bed.ask(make_member("p-0", "b", 2), "innocent"))


async def test_pods_that_exist_count_only_once_against_the_quota(patient_bed: OfferBed) -> None:
    for number in range(2):
        await patient_bed.create(f"p-{number}", "a", 2)
    patient_bed.set_quota(requests_nvidia_com__gpu="16", used="8")
    assert not is_gated(await patient_bed.create("q-0", "b", 2))


@pytest.mark.parametrize(("limit", "most"), [("_MOST_OPEN", 2), ("_MOST_OPEN_SEATS", 5)])
async def test_a_namespace_has_few_offers_at_a_time(
    patient_bed: OfferBed, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(seat_offers, limit, most)
    for number in range(2):
        await patient_bed.create(f"p-{number}", "whole", 2, gpus=1)
    answers = [await patient_bed.ask(make_member("p-0", gang, 2, gpus=1)) for gang in ("a", "b", "c")]
    assert [is_gated(pod) for pod in answers] == [False, False, True]
    assert not is_gated(await patient_bed.ask(make_member("p-0", "c", 2, gpus=1), "innocent"))


# --- settings -------------------------------------------------------------------------------------------

TLS: dict[str, Any] = {"extender_tls_cert_file": "c", "extender_tls_key_file": "k", "extender_tls_client_ca_file": "a"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"admission_bind_address": ":9444"}, "HTTPS only"),
        ({"admission_bind_address": ":9444", "admission_client_names": (), **TLS}, "admissionClientNames"),
        ({"offer_hold_seconds": 11.0}, "at most 10"),
        ({"offer_hold_seconds": 0.0}, "above 0"),
    ],
)
def test_settings_that_let_others_reserve_seats_are_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(Permanent, match=says):
        load(None, settings)


def test_other_machines_need_a_certificate_of_the_client_authority() -> None:
    files = Settings(admission_bind_address=":9444", **TLS).admission_tls
    assert files is not None
    assert (str(files.authority), files.names) == ("a", frozenset({"kube-apiserver"}))
    local = Settings(admission_bind_address="127.0.0.1:1", admission_client_names=(), **TLS).admission_tls
    assert local is not None
    assert local.authority is None
