"""When a failure is believed."""

from __future__ import annotations

import pytest

from kgwe.apps.scheduler.disruption.failure_detector import FailureDetector, Patience
from kgwe.kube.translate.node_health import NodeFault

PATIENCE = Patience(gather_s=1, not_ready_s=10, share=0.3, least=3, hold_s=30, longest_hold_s=100)


@pytest.fixture
def damping():
    return FailureDetector(PATIENCE)


def test_a_node_that_is_lost_is_believed_after_a_moment(damping: FailureDetector):
    damping.observe_node("a", NodeFault.LOST, 100.0)
    assert damping.confirm_failures(100.5, 100) == 101.0
    assert damping.failed_nodes() == frozenset()
    assert damping.confirm_failures(101.0, 100) is None
    assert damping.failed_nodes() == {"a"}


def test_a_kubelet_that_says_it_is_not_ready_is_given_longer(damping: FailureDetector):
    damping.observe_node("a", NodeFault.NOT_READY, 100.0)
    assert damping.confirm_failures(101.0, 100) == 110.0
    assert not damping.failed_nodes()
    damping.observe_node("a", NodeFault.LOST, 102.0)
    damping.confirm_failures(102.0, 100)
    assert damping.failed_nodes() == {"a"}, "it has been out of order since 100"


def test_a_node_that_comes_back_in_time_never_failed(damping: FailureDetector):
    damping.observe_node("a", NodeFault.LOST, 100.0)
    damping.observe_node("a", None, 100.9)
    assert damping.confirm_failures(102.0, 100) is None
    assert damping.is_calm
    damping.observe_node("a", NodeFault.LOST, 103.0)
    damping.confirm_failures(103.5, 100)
    assert not damping.failed_nodes(), "the time starts anew"


def test_a_node_believed_to_be_down_is_so_until_it_is_back(damping: FailureDetector):
    damping.observe_node("a", NodeFault.LOST, 100.0)
    damping.confirm_failures(101.0, 100)
    damping.observe_node("a", NodeFault.NOT_READY, 101.5)
    damping.confirm_failures(101.5, 100)
    assert damping.failed_nodes() == {"a"}
    damping.observe_node("a", None, 102.0)
    assert not damping.failed_nodes()


def test_cards_are_believed_one_by_one(damping: FailureDetector):
    damping.observe_gpus("a", 0b0001, 100.0)
    damping.observe_gpus("a", 0b1001, 100.8)
    assert damping.confirm_failures(100.5, 100) == 101.0
    assert damping.failed_gpus(101.0) == {"a": 0b0001}
    assert damping.failed_gpus(101.8) == {"a": 0b1001}
    damping.observe_gpus("a", 0b1000, 102.0)
    assert damping.failed_gpus(103.0) == {"a": 0b1000}
    assert damping.failed_since("a") == 100.8


def test_when_much_of_the_fleet_fails_at_once_all_of_it_waits(damping: FailureDetector):
    for number in range(4):
        damping.observe_node(f"n{number}", NodeFault.LOST, 100.0)
    assert damping.confirm_failures(100.0, 10) == 130.0
    assert damping.confirm_failures(120.0, 10) == 130.0
    assert not damping.failed_nodes()
    damping.confirm_failures(130.0, 10)
    assert len(damping.failed_nodes()) == 4


def test_nodes_that_come_back_end_the_storm_and_the_rest_is_believed(damping: FailureDetector):
    for number in range(4):
        damping.observe_node(f"n{number}", NodeFault.LOST, 100.0)
    damping.confirm_failures(101.0, 10)
    damping.observe_node("n0", None, 105.0)
    damping.confirm_failures(105.0, 10)
    assert damping.failed_nodes() == {"n1", "n2", "n3"}
    assert damping.held_until == 0


def test_a_storm_that_grows_is_waited_for_longer_each_time(damping: FailureDetector):
    for number in range(4):
        damping.observe_node(f"n{number}", NodeFault.LOST, 100.0)
    damping.confirm_failures(100.0, 20)
    damping.confirm_failures(100.0, 10)
    assert damping.held_until == 130.0
    holds = []
    now = 130.0
    for number in range(4, 8):
        damping.observe_node(f"n{number}", NodeFault.LOST, now)
        damping.confirm_failures(now, 10)
        holds.append(damping.held_until - now)
        now = damping.held_until
    assert holds == [60, 100, 100, 100]


def test_a_few_nodes_are_no_storm_however_small_the_fleet(damping: FailureDetector):
    damping.observe_node("a", NodeFault.LOST, 100.0)
    damping.observe_node("b", NodeFault.LOST, 100.0)
    damping.confirm_failures(101.0, 2)
    assert damping.failed_nodes() == {"a", "b"}


def test_what_was_believed_before_a_storm_stays_believed(damping: FailureDetector):
    damping.observe_node("early", NodeFault.LOST, 90.0)
    damping.confirm_failures(95.0, 10)
    for number in range(4):
        damping.observe_node(f"n{number}", NodeFault.LOST, 100.0)
    damping.confirm_failures(102.0, 10)
    assert damping.failed_nodes() == {"early"}
