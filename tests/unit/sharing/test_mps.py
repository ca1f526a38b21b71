"""When processes may share a GPU through one MPS server."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.samples import A100, card, cut_into, machine
from tests.support.examples import examples

from kgwe.sharing import mps
from kgwe.sharing.mps import Client, Limits, Target

CARD = Target("GPU-0", 80_000, (9, 0))


def test_the_defaults_are_those_of_the_seed():
    assert Limits() == Limits(thread_percentage=25, memory_mib=None, max_clients=8)
    assert mps.find_problems(CARD, Limits()) == []
    assert mps.memory_limit_mib(CARD, Limits()) == 10_000


@pytest.mark.parametrize(
    ("target", "limits", "word"),
    [
        (replace(CARD, compute_capability=(6, 1)), Limits(), "Volta"),
        (replace(CARD, compute_capability=None), Limits(), "not known"),
        (replace(CARD, is_cut=True), Limits(), "cannot span"),
        (replace(CARD, is_instance=True), Limits(is_exclusive=True), "whole GPU's"),
        (CARD, Limits(thread_percentage=0), "within 1 and 100"),
        (CARD, Limits(thread_percentage=101), "within 1 and 100"),
        (CARD, Limits(max_clients=0), "1 to 48"),
        (CARD, Limits(max_clients=49), "1 to 48"),
        (CARD, Limits(memory_mib=0), "leaves nothing"),
        (CARD, Limits(memory_mib=80_001), "more than the 80000 MiB"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(target, limits, word):
    [problem] = mps.find_problems(target, limits)
    assert word in problem
    assert not mps.admit_clients(target, limits, [Client("a")]).is_admitted


def test_an_instance_can_have_a_server_and_its_card_cannot():
    on = machine(
        replace(card(0, A100, cut=cut_into("3g.40gb@0", "3g.40gb@4")), compute_capability=(8, 0)),
        replace(card(1, A100), compute_capability=(8, 0)),
    )
    found = mps.list_targets(on)
    assert set(found) == {"GPU-0", "GPU-1", "MIG-0-0", "MIG-0-1"}
    assert {uuid for uuid, target in found.items() if not mps.find_problems(target, Limits())} == {
        *("MIG-0-0", "MIG-0-1", "GPU-1")
    }
    assert mps.memory_limit_mib(found["MIG-0-0"], Limits(max_clients=4)) == found["MIG-0-0"].memory_mib // 4  # type: ignore[operator] # known


def test_clients_are_admitted_all_or_none():
    crowd = [Client("a"), Client("b"), Client("c")]
    assert "3 clients for a server that takes 2" in mps.admit_clients(CARD, Limits(max_clients=2), crowd).problems
    assert "one user" in mps.admit_clients(CARD, Limits(), [Client("a", user=1), Client("b", user=2)]).problems[0]
    assert "10000 MiB" in mps.admit_clients(CARD, Limits(), [Client("a", memory_mib=10_001)]).problems[0]
    too_much = mps.admit_clients(CARD, Limits(memory_mib=30_000), [Client("a"), Client("b"), Client("c")])
    assert too_much.problems == ("90000 MiB for all clients are more than the 80000 MiB there are",)


def test_a_client_gets_less_than_the_default_if_it_asks_and_never_more():
    answer = mps.admit_clients(CARD, Limits(), [Client("a", thread_percentage=10), Client("b", 90), Client("c")])
    assert [client.thread_percentage for client in answer.clients] == [10, 25, 25]
    assert not answer.is_oversubscribed
    assert mps.admit_clients(CARD, Limits(), [Client(str(i)) for i in range(8)]).is_oversubscribed


@examples(150)
@given(
    memory=st.one_of(st.none(), st.integers(1, 200_000)),
    limits=st.builds(
        Limits, st.integers(-1, 110), st.one_of(st.none(), st.integers(0, 100_000)), st.integers(-1, 60), st.booleans()
    ),
    clients=st.lists(
        st.builds(
            Client,
            st.text("abc", min_size=1, max_size=3),
            st.one_of(st.none(), st.integers(0, 110)),
            st.one_of(st.none(), st.integers(0, 100_000)),
            st.integers(0, 1),
        ),
        max_size=10,
    ),
)
def test_whoever_is_admitted_fits(memory, limits, clients):
    target = Target("GPU-0", memory, (8, 0))
    answer = mps.admit_clients(target, limits, clients)
    if not answer.is_admitted:
        assert answer.clients == ()
        return
    assert len(answer.clients) == len(clients) <= limits.max_clients <= mps.HARDWARE_CLIENTS
    assert all(1 <= (client.thread_percentage or 0) <= limits.thread_percentage for client in answer.clients)
    if memory is not None:
        assert sum(client.memory_mib or 0 for client in answer.clients) <= memory
        assert all(client.memory_mib is not None for client in answer.clients)


def test_a_client_finds_its_server_and_its_limits_in_its_environment():
    assert mps.client_environment("GPU-0", "/run/mps/pipe", Client("a", 25, 4096)) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mps/pipe",
        "NVIDIA_VISIBLE_DEVICES": "GPU-0",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M",
    }
