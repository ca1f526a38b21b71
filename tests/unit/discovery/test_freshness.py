"""A GPUNode nobody signs any more is never shown as good."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe.apps.discovery.freshness import STALE_AFTER_S, Freshness, judge, judge_all
from kgwe.kube.api import timestamp
from kgwe.kube.api.kgwe.gpunode import GPUNode, GPUNodeSpec, GPUNodeStatus, Source
from kgwe.kube.api.meta import Condition, ObjectMeta

NOW = dt.datetime(2026, 11, 16, 12, tzinfo=dt.UTC)


def signed(age_s: float | None, *, driver: str = "True", name: str = "n") -> GPUNode:
    heartbeat = None if age_s is None else timestamp.seconds(NOW - dt.timedelta(seconds=age_s))
    ready = Condition("DriverReady", driver, "Ready" if driver == "True" else "Unavailable", "no library")
    return GPUNode(metadata=ObjectMeta(name=name), status=GPUNodeStatus(heartbeatTime=heartbeat, conditions=(ready,)))


@pytest.mark.parametrize(
    ("node", "freshness"),
    [
        (signed(0), Freshness.FRESH),
        (signed(STALE_AFTER_S), Freshness.FRESH),
        (signed(STALE_AFTER_S + 1), Freshness.STALE),
        (signed(None), Freshness.SILENT),
        (signed(-30), Freshness.FRESH),
        (signed(-3600), Freshness.STALE),
        (signed(10, driver="False"), Freshness.NO_DRIVER),
        (signed(86400, driver="False"), Freshness.STALE),
    ],
)
def test_freshness_follows_the_last_sign_of_life(node, freshness):
    seen = judge(node, NOW)
    assert seen.freshness is freshness
    assert seen.is_good is (freshness is Freshness.FRESH)
    assert bool(seen.reason) is not seen.is_good


def test_a_simulated_node_has_no_agent_to_hear_of():
    node = GPUNode(metadata=ObjectMeta(name="n"), spec=GPUNodeSpec(source=Source.SIMULATED))
    assert judge(node, NOW).freshness is Freshness.SIMULATED


@given(st.floats(min_value=0, max_value=1e7), st.floats(min_value=0, max_value=1e7))
def test_nothing_becomes_fresh_by_waiting(age_s, more_s):
    before, after = judge(signed(age_s), NOW), judge(signed(age_s + more_s), NOW)
    assert before.is_good or not after.is_good


def test_all_are_listed_by_name():
    assert [seen.node.metadata.name for seen in judge_all([signed(1, name="b"), signed(None, name="a")], NOW)] == [
        "a",
        "b",
    ]
