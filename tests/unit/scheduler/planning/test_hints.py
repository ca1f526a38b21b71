"""Placement hints of waiting workloads: asked in the background, used while they are fresh."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

from tests.support.machines.reference import nvswitch

from kgwe import errors
from kgwe.apps.scheduler.planning.cycle import PlanningCycle
from kgwe.apps.scheduler.planning.hints import PlacementHints
from kgwe.apps.scheduler.planning.refresher import Refresher
from kgwe.model.network import domains
from kgwe.model.units import amounts
from kgwe.model.usage.description import WorkloadDescription
from kgwe.placement.fleet.node import Gpus, Node, Request, Shape
from kgwe.placement.live.fleet import LiveFleet
from kgwe.placement.planning.ask import Ask
from kgwe.records import codec

TRAIN = WorkloadDescription("ml", "train", image="a:1", milli_gpus=1000)
OTHER = WorkloadDescription("ml", "other", image="b:1", milli_gpus=1000)


class Source:
    """Answers in turn; an exception is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.is_closed = False

    async def find_hint(self, workload):
        self.asked.append(workload.name)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self):
        self.is_closed = True


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def describe(workload: Any) -> WorkloadDescription:
    """The tests use descriptions as workloads."""
    return workload  # type: ignore[no-any-return] # see above


def refresher(source, workloads, clock=None):
    hints = PlacementHints(source, describe, clock=clock or Clock())
    return hints, Refresher(hints, lambda: workloads, every_s=60)


async def test_equal_workloads_are_asked_about_once_and_gangs_not_at_all():
    source = Source({"n1": 2.0}, {"n2": -1.0})
    found, asking = refresher(source, {"a": TRAIN, "b": TRAIN, "c": OTHER, "gang": replace(TRAIN, pods=2)})
    await asking.refresh()
    assert source.asked == ["train", "other"]
    assert [found.find(owner) for owner in ("a", "b", "c", "gang")] == [{"n1": 2.0}, {"n1": 2.0}, {"n2": -1.0}, {}]


async def test_a_source_that_is_down_or_broken_leaves_the_last_hints_until_they_are_old():
    clock = Clock()
    found, asking = refresher(Source({"n1": 2.0}, errors.Transient("down"), ValueError("defect")), {"a": TRAIN}, clock)
    for _ in range(3):
        await asking.refresh()
        assert found.find("a") == {"n1": 2.0}
    clock.now += 301
    assert found.find("a") == {}


async def test_hints_are_read_while_the_source_hangs():
    released = asyncio.Event()

    class Hanging(Source):
        async def find_hint(self, _workload):
            await released.wait()
            return {}

    source = Hanging()
    found, asking = refresher(source, {"a": TRAIN})
    task = asyncio.create_task(asking.run())
    await asyncio.sleep(0)
    assert found.find("a") == {}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert source.is_closed


def plan(find_hint):
    fleet = LiveFleet()
    shape = Shape(nvswitch(8), "NVIDIA-H100-80GB-HBM3", 81_559, "Hopper")
    fleet.set_nodes([Node(f"n{number}", shape, 64_000, 2**40) for number in range(3)], domains.build_tree((), ()))
    cycle = PlanningCycle(fleet, {}, random.Random(1), find_hint=find_hint)
    cycle.put(Ask("w", Request(Gpus(count=8)), {amounts.GPU: 8, amounts.PODS: 1}))
    ((_, made),) = cycle.run(1000.0).plans
    return made


def test_a_pass_uses_the_hint_of_the_owner():
    assert plan(lambda _: {}).nodes == ("n0",)
    assert plan({"w": {"n2": 1.0}}.get).nodes == ("n2",)


def test_a_recorded_ask_has_its_hint():
    asked = Ask("w", Request(Gpus(count=1)), hint={"n1": 1.5})
    assert codec.decode_value(Ask, codec.encode_value(asked)).hint == {"n1": 1.5}
