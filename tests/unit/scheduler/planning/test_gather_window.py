"""A planning pass waits for gangs whose pods are being created, and not for long."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from tests.support.builders.objects import added, node
from tests.support.patience import PATIENCE_S

from kgwe.apps.scheduler.metrics import Metrics
from kgwe.apps.scheduler.planning.gather_window import GatherWindow
from kgwe.apps.scheduler.planning.planner import Planner
from kgwe.apps.scheduler.planning_errors import PlanningErrors
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.placement.fleet.node import Gpus, Request
from kgwe.placement.gang.request import GangRequest
from kgwe.placement.planning.ask import Ask


class Bed:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.grown_s: float | None = None
        self.window = GatherWindow(lambda: self.grown_s, quiet_s=0.25, limit_s=2.0, clock=lambda: self.now_s)


def test_without_a_gang_that_needs_several_leaves_nothing_is_waited_for():
    bed = Bed()
    bed.grown_s = bed.now_s
    assert not bed.window.is_open
    assert bed.window.remaining_s() == 0


def test_a_gang_that_comes_alone_is_planned_at_once():
    bed = Bed()
    bed.window.open()
    assert bed.window.remaining_s() == 0


def test_the_pass_waits_until_no_pod_has_come_for_the_quiet_time():
    bed = Bed()
    bed.window.open()
    bed.grown_s = bed.now_s
    assert bed.window.remaining_s() == 0.25
    bed.now_s += 0.125
    assert bed.window.remaining_s() == 0.125
    bed.grown_s = bed.now_s
    assert bed.window.remaining_s() == 0.25
    bed.now_s += 0.5
    assert bed.window.remaining_s() == 0


def test_the_pass_waits_no_longer_than_the_limit_however_many_come():
    bed = Bed()
    bed.window.open()
    bed.now_s = bed.grown_s = 101.875
    bed.window.open()
    assert bed.window.remaining_s() == 0.125
    bed.now_s = bed.grown_s = 102.0
    assert bed.window.remaining_s() == 0


def test_the_pass_runs_as_soon_as_every_gang_is_complete():
    bed = Bed()
    bed.window.open()
    bed.grown_s = bed.now_s
    assert bed.window.remaining_s() > 0
    bed.grown_s = None
    assert bed.window.remaining_s() == 0


def test_each_pass_closes_the_window():
    bed = Bed()
    bed.window.open()
    bed.window.close()
    bed.grown_s = bed.now_s
    assert bed.window.remaining_s() == 0


async def test_a_gang_that_needs_several_leaves_is_planned_when_the_others_are_complete():
    state, metrics, decided = ClusterState(), Metrics(), asyncio.Event()
    state.on_node(added(node("n1")))
    growing = [time.monotonic()]
    planner = Planner(
        state,
        {},
        random.Random(1),
        metrics,
        faults=PlanningErrors(metrics),
        on_decided=lambda _owner, _decision: decided.set(),
        window=GatherWindow(lambda: growing[0] if growing else None, quiet_s=3600.0, limit_s=3600.0),
    )
    request = Request(Gpus(count=8))
    planner.request_place(Ask("big", request, pods=3, gang=GangRequest.uniform(request, 3)))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(decided.wait(), 0.2)
    growing.clear()
    await asyncio.wait_for(decided.wait(), PATIENCE_S)
    planner.close()
