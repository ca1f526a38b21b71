"""The life of an advice: advised, granted, listed by the kubelet, forgotten."""

from __future__ import annotations

import pytest

from kgwe.apps.agent.devices.advice import AdviceBook

GPU = "nvidia.com/gpu"
ONE, TWO = frozenset({"GPU-1"}), frozenset({"GPU-2"})


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(clock: Clock) -> AdviceBook:
    return AdviceBook(clock)


def advise(book: AdviceBook, pod: str, devices: frozenset[str], planned: frozenset[str] = frozenset()) -> None:
    book.advise(GPU, pod=pod, uid=f"{pod}-uid", devices=devices, planned=planned)


def test_an_advice_reserves_its_devices_until_it_expires(book, clock):
    advise(book, "a", ONE)
    assert [each.devices for each in book.list_advised(GPU)] == [ONE]
    assert book.list_advised("other") == []
    clock.now_s = 5.0
    assert book.list_advised(GPU) == []


def test_a_newer_advice_for_a_pod_replaces_the_older_but_unknown_pods_are_not_one(book):
    advise(book, "a", ONE)
    advise(book, "a", TWO)
    assert [each.devices for each in book.list_advised(GPU)] == [TWO]
    assert book.count_tries(GPU, "a") == 2
    advise(book, "", ONE)
    advise(book, "", ONE)
    assert [each.pod for each in book.list_advised(GPU)] == ["a", "", ""]


def test_only_an_allocation_of_exactly_the_advised_devices_follows_it(book):
    advise(book, "a", ONE | TWO, planned=ONE)
    assert book.grant(GPU, ONE) is None
    assert book.overlaps_advice(GPU, ONE)
    followed = book.grant(GPU, ONE | TWO)
    assert (followed.pod, followed.planned) == ("a", ONE)
    assert book.list_advised(GPU) == []
    assert book.count_tries(GPU, "a") == 0


def test_a_grant_stays_reserved_until_the_kubelet_lists_it(book, clock):
    advise(book, "a", ONE)
    book.grant(GPU, ONE)
    assert [each.devices for each in book.list_unlisted_grants(GPU, "a", "a-uid", frozenset())] == [ONE]
    assert book.list_unlisted_grants(GPU, "a", "another-uid", frozenset()) == []
    assert book.list_unlisted_grants(GPU, "a", "a-uid", ONE | TWO) == []
    clock.now_s = 5.0
    assert book.list_unlisted_grants(GPU, "a", "a-uid", frozenset()) == []


def test_what_was_granted_is_known_until_the_pod_is_gone(book):
    for devices in (ONE, TWO):
        advise(book, "a", devices)
        book.grant(GPU, devices)
    assert book.granted_devices(GPU, "a") == ONE | TWO
    book.forget_pods({"a"})
    assert book.granted_devices(GPU, "a") == ONE | TWO
    book.forget_pods({"b"})
    assert book.granted_devices(GPU, "a") == frozenset()


def test_tries_count_only_while_the_pod_lacks_devices(book):
    advise(book, "a", ONE)
    advise(book, "b", TWO)
    book.forget_tries(GPU, {"b"})
    assert (book.count_tries(GPU, "a"), book.count_tries(GPU, "b")) == (0, 1)
