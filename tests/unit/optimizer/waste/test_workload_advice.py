"""Findings about pods of a GPUWorkload are written on the GPUWorkload, once per change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.builders.assessments import assessment, facts
from tests.support.fakes.memory_api import MemoryApi

from kgwe.apps.optimizer.waste.detector import Assessment
from kgwe.apps.optimizer.waste.reporter import FindingReporter
from kgwe.cluster.workload.workload import from_kgwe
from kgwe.forecast.waste.states import State
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient

if TYPE_CHECKING:
    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.kube.client.events import Event
    from kgwe.model.usage.window import PodKey

NOW_S = 1_795_003_200.0
PATH = resources.GPU_WORKLOAD.path(namespace="team", name="train")
SPEC = {"gpuRequirements": {"count": 1}, "podTemplate": {"spec": {"containers": [{"name": "main", "image": "a"}]}}}


class Bed:
    """A reporter, and the GPUWorkload `train` with two pods in an API server."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.events: list[Event] = []
        self.pods: dict[PodKey, PodFacts] = {}
        self.reporter = self.restart()

    def restart(self) -> FindingReporter:
        self.reporter = FindingReporter(KubeClient(self.api), self.events.append, lambda: self.pods)
        return self.reporter

    def create(self) -> dict[str, Any]:
        body = {"metadata": {"name": "train"}, "spec": SPEC}
        return self.api.call("POST", resources.GPU_WORKLOAD.path(namespace="team"), body)

    def add(self, number: int, uid: str = "") -> PodFacts:
        name = f"train-{number}"
        made = self.api.call("POST", resources.POD.path(namespace="team"), {"metadata": {"name": name}})
        labels = {"kgwe.nvidia.io/workload": "train"} | ({"kgwe.nvidia.io/workload-uid": uid} if uid else {})
        pod = facts(name, uid=made["metadata"]["uid"], labels=labels)
        assert pod.owner_kind == "GPUWorkload"
        self.pods[pod.key] = pod
        return pod

    def read(self) -> dict[str, Any]:
        return dict(self.api.call("GET", PATH).get("status", {}).get("optimization") or {})

    def writes(self) -> list[str]:
        return [path for method, path in self.api.requests if method == "PATCH"]

    async def report(self, *states: tuple[PodFacts, State], at_s: float = NOW_S) -> None:
        await self.reporter.report(assessment(list(states), at_s))


@pytest.fixture
def bed() -> Bed:
    return Bed()


async def test_the_worst_pod_and_the_saving_of_all_are_written_once(bed: Bed):
    bed.create()
    one, two = bed.add(0), bed.add(1)
    for later in range(4):
        await bed.report((one, State.IDLE), (two, State.IDLE), at_s=NOW_S + 30 * later)
    found = bed.read()
    assert (found["finding"], found["recommendation"]) == ("Idle", "suspend it")
    assert found["savingPerMonth"] == pytest.approx(2 * 3.0 * 730)
    assert "did nothing" in found["message"]
    assert bed.writes() == [f"{PATH}/status"]


async def test_another_finding_is_written_and_a_workload_in_use_loses_it(bed: Bed):
    bed.create()
    pod = bed.add(0)
    await bed.report((pod, State.IDLE))
    await bed.report((pod, State.IDLE_HOLDING))
    assert bed.read()["finding"] == "IdleHoldingMemory"
    await bed.report((pod, State.BUSY))
    assert bed.read() == {}
    await bed.report((pod, State.BUSY))
    assert len(bed.writes()) == 3


async def test_an_unknown_state_changes_nothing(bed: Bed):
    bed.create()
    pod = bed.add(0)
    await bed.report((pod, State.IDLE))
    await bed.report((pod, State.UNKNOWN))
    assert bed.read()["finding"] == "Idle"
    await bed.report((pod, State.IDLE))
    assert len(bed.writes()) == 1
    assert len(bed.events) == 1


async def test_a_workload_without_pods_loses_its_advice(bed: Bed):
    bed.create()
    pod = bed.add(0)
    await bed.report((pod, State.IDLE))
    bed.pods.clear()
    await bed.reporter.report(Assessment(at_s=NOW_S))
    assert bed.read() == {}


async def test_without_the_workload_the_pod_has_the_condition(bed: Bed):
    pod = bed.add(0)
    for later in range(3):
        await bed.report((pod, State.IDLE), at_s=NOW_S + 30 * later)
    found = bed.api.call("GET", resources.POD.path(namespace="team", name="train-0"))
    assert [each["reason"] for each in found["status"]["conditions"]] == ["Idle"]
    assert len(bed.writes()) == 2


async def test_a_workload_with_another_uid_is_not_changed(bed: Bed):
    bed.create()
    await bed.report((bed.add(0, uid="of-another"), State.IDLE))
    assert bed.read() == {}


async def test_a_new_leader_goes_on_with_what_was_written(bed: Bed):
    bed.create()
    pod = bed.add(0)
    await bed.report((pod, State.IDLE))
    stored = bed.api.call("GET", PATH)
    bed.restart().restore([], [from_kgwe(msgspec.convert(stored, resources.GPU_WORKLOAD.type))])
    await bed.report((pod, State.IDLE), at_s=NOW_S + 60)
    assert len(bed.writes()) == 1
    assert len(bed.events) == 1
    await bed.report((pod, State.BUSY))
    assert bed.read() == {}
