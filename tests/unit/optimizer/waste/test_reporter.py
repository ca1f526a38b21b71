"""Findings become Events and conditions when they change, and nothing is written for what is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.builders.assessments import assessment, facts, found, recommendation
from tests.support.builders.optimizer_pods import make_pod
from tests.support.fakes.memory_api import MemoryApi

from kgwe.apps.optimizer.waste.detector import Assessment
from kgwe.apps.optimizer.waste.reporter import CONDITION, FindingReporter, describe
from kgwe.forecast.waste.findings import Kind
from kgwe.forecast.waste.states import State
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient

if TYPE_CHECKING:
    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.kube.client.events import Event

NOW_S = 1_795_003_200.0


class Bed:
    """A reporter, and pods in an API server."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.events: list[Event] = []
        self.reporter = self.restart()

    def restart(self) -> FindingReporter:
        self.reporter = FindingReporter(KubeClient(self.api), self.events.append)
        return self.reporter

    def add(self, name: str = "train-0") -> PodFacts:
        """Create a pod; return its facts."""
        made = self.api.call("POST", resources.POD.path(namespace="team"), {"metadata": {"name": name}})
        return facts(name, uid=made["metadata"]["uid"])

    def condition(self, name: str = "train-0") -> tuple[str, str] | None:
        pod = self.api.call("GET", resources.POD.path(namespace="team", name=name))
        for each in pod.get("status", {}).get("conditions", ()):
            if each["type"] == CONDITION:
                return each["status"], each["reason"]
        return None

    def count_writes(self) -> int:
        return sum(method == "PATCH" for method, _ in self.api.requests)

    async def report(self, pod: PodFacts, state: State, at_s: float = NOW_S) -> None:
        await self.reporter.report(assessment([(pod, state)], at_s))


@pytest.fixture
def bed() -> Bed:
    return Bed()


async def test_a_finding_is_written_once(bed: Bed):
    pod = bed.add()
    for later in range(5):
        await bed.report(pod, State.IDLE, NOW_S + 30 * later)
    assert bed.condition() == ("True", "Idle")
    assert [event.reason for event in bed.events] == ["Idle"]
    assert bed.count_writes() == 1


async def test_another_kind_of_finding_is_written_again(bed: Bed):
    pod = bed.add()
    await bed.report(pod, State.IDLE)
    await bed.report(pod, State.IDLE_HOLDING, NOW_S + 30)
    assert bed.condition() == ("True", "IdleHoldingMemory")
    assert [event.reason for event in bed.events] == ["Idle", "IdleHoldingMemory"]


async def test_a_finding_that_stays_is_an_event_again_after_an_hour(bed: Bed):
    pod = bed.add()
    for at_s in (NOW_S, NOW_S + 3599, NOW_S + 3600):
        await bed.report(pod, State.IDLE, at_s)
    assert len(bed.events) == 2


async def test_a_pod_that_works_again_loses_its_condition(bed: Bed):
    pod = bed.add()
    await bed.report(pod, State.IDLE)
    await bed.report(pod, State.BUSY, NOW_S + 30)
    assert bed.condition() == ("False", "InUse")
    await bed.report(pod, State.BUSY, NOW_S + 60)
    assert bed.count_writes() == 2


async def test_a_pod_whose_state_is_unknown_keeps_its_condition(bed: Bed):
    pod = bed.add()
    await bed.report(pod, State.IDLE)
    await bed.report(pod, State.UNKNOWN, NOW_S + 30)
    assert bed.condition() == ("True", "Idle")
    assert bed.count_writes() == 1
    await bed.report(pod, State.IDLE, NOW_S + 60)
    assert len(bed.events) == 1


async def test_a_busy_pod_is_never_written(bed: Bed):
    await bed.report(bed.add(), State.BUSY)
    assert bed.count_writes() == 0


async def test_a_pod_that_is_gone_is_forgotten(bed: Bed):
    pod = bed.add()
    await bed.report(pod, State.IDLE)
    bed.api.call("DELETE", resources.POD.path(namespace="team", name="train-0"))
    for _ in range(3):
        await bed.reporter.report(Assessment(at_s=NOW_S))
    assert bed.count_writes() == 2
    assert bed.reporter.failures == 0


async def test_a_pod_that_got_the_name_of_another_is_not_written_for_it(bed: Bed):
    pod = bed.add()
    await bed.report(pod, State.IDLE)
    bed.api.call("DELETE", resources.POD.path(namespace="team", name="train-0"))
    new = bed.add()
    for _ in range(3):
        await bed.report(new, State.BUSY)
    assert bed.condition() is None
    assert bed.count_writes() == 2


async def test_after_a_restart_the_conditions_of_the_last_leader_are_cleared(bed: Bed):
    pod = bed.add()
    await bed.report(pod, State.IDLE)
    written = make_pod("train-0", namespace="team", uid=pod.uid)
    stored = bed.api.call("GET", resources.POD.path(namespace="team", name="train-0"))["status"]
    bed.restart().restore([_with_conditions(written, stored["conditions"])])
    await bed.report(pod, State.IDLE)
    assert (bed.count_writes(), len(bed.events)) == (1, 1)  # both are there already
    await bed.report(pod, State.BUSY)
    assert bed.condition() == ("False", "InUse")


def _with_conditions(pod: Any, conditions: list[dict[str, Any]]) -> Any:
    body = msgspec.to_builtins(pod)
    body["status"]["conditions"] = conditions
    return msgspec.convert(body, type(pod))


async def test_a_failed_write_is_tried_again(bed: Bed):
    pod = bed.add()
    bed.api.refuse_next("PATCH", resources.POD, 500, "etcd is down")
    await bed.report(pod, State.IDLE)
    assert (bed.condition(), bed.reporter.failures) == (None, 1)
    await bed.report(pod, State.IDLE, NOW_S + 30)
    assert bed.condition() == ("True", "Idle")
    assert len(bed.events) == 1


async def test_a_condition_that_may_not_be_cleared_is_tried_again(bed: Bed):
    pod = bed.add()
    await bed.report(pod, State.IDLE)
    bed.api.refuse_next("PATCH", resources.POD, 403, "forbidden", "Forbidden")
    await bed.report(pod, State.BUSY)
    await bed.report(pod, State.BUSY)
    assert bed.condition() == ("False", "InUse")


async def test_a_round_writes_at_most_fifty_conditions_and_the_next_ones_the_rest(bed: Bed):
    pods = [bed.add(f"p-{number}") for number in range(120)]
    idle = assessment([(pod, State.IDLE) for pod in pods], NOW_S)
    written = []
    for _ in range(3):
        await bed.reporter.report(idle)
        written.append(bed.count_writes())
    assert written == [50, 100, 120]
    busy = assessment([(pod, State.BUSY) for pod in pods], NOW_S)
    for _ in range(3):
        await bed.reporter.report(busy)
    assert bed.count_writes() == 240
    assert {bed.condition(f"p-{number}") for number in range(120)} == {("False", "InUse")}


async def test_one_pod_that_cannot_be_written_does_not_stop_the_others(bed: Bed):
    pods = [bed.add("a"), bed.add("b")]
    bed.api.refuse_next("PATCH", resources.POD, 403, "forbidden", "Forbidden")
    await bed.reporter.report(assessment([(pod, State.IDLE) for pod in pods], NOW_S))
    assert (bed.condition("a"), bed.condition("b")) == (None, ("True", "Idle"))


def test_a_finding_is_described_with_advice_and_money():
    pod = facts()
    text = describe(found(pod))
    assert text.startswith("train-0 did nothing. Recommended: ")
    assert text.endswith("It would save $2,190 per month.")
    assert "save" not in describe(found(pod, recommendation=recommendation(pod, None)))
    assert describe(found(pod, Kind.IMBALANCE, recommendation=None)) == "train-0 did nothing."
