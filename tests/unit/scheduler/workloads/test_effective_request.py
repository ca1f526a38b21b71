"""A decision makes the request of a workload smaller: in the plan, the Job and the status, and never in the spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.fakes.leader_bed import NAMESPACE
from tests.support.fakes.reconciler_bed import ReconcilerBed

from kgwe.cluster.workload.effective_request import SmallerRequest, find_objection
from kgwe.cluster.workload.workload import from_kgwe
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kgwe.cluster.workload.workload import Workload

SLICE = SmallerRequest(profile="1g.10gb", source="Test", reason="it uses 4 GB")
MIG = "nvidia.com/mig-1g.10gb"


class Source:
    """Decides what the test says."""

    def __init__(self, decision: SmallerRequest | None = SLICE) -> None:
        self.decision = decision

    def decide(self, _workload: Workload) -> SmallerRequest | None:
        return self.decision


class Bed(ReconcilerBed):
    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.source = source

    async def prepare(self) -> None:
        await self.node("n1", gpus=2, **{MIG: "7"})

    async def add(self, **spec: Any) -> None:
        self.uid = (await self.workload(count=1, **spec)).metadata.uid

    @property
    def request(self) -> dict[str, str]:
        """GPUs that the pod template of the only Job asks for."""
        (job,) = self.objects(resources.JOB)
        limits = job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
        return {name: count for name, count in limits.items() if name.startswith("nvidia.com/")}

    async def follow(self) -> None:
        """Write the status of the run."""
        await self.reconcile()
        self.now += 20.0
        assert await self.reconcile() == "done"


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    made = Bed(Source())
    await made.prepare()
    yield made
    await made.close()


async def test_a_workload_is_planned_with_the_smaller_request_and_its_spec_stays(bed: Bed) -> None:
    await bed.add()
    job = await bed.start()
    assert bed.request == {MIG: "1"}
    assert job["spec"]["template"]["metadata"]["annotations"]["kgwe.nvidia.io/original-gpu-request"] == "1"
    await bed.follow()
    stored = bed.stored(resources.GPU_WORKLOAD, "w")
    assert stored["spec"]["gpuRequirements"] == {"count": 1}
    assert stored["status"]["effectiveRequirements"] == {
        "original": "1",
        "effective": "1×1g.10gb",
        "resource": MIG,
        "source": "Test",
        "reason": "it uses 4 GB",
    }
    assert stored["status"]["requestedGPUs"] == "1×1g.10gb"


async def test_containers_that_ask_for_the_gpu_themselves_ask_for_the_slice(bed: Bed) -> None:
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "1"}}}
    await bed.add(podTemplate={"spec": {"containers": [container]}})
    await bed.start()
    assert bed.request == {MIG: "1"}


async def test_in_shadow_the_status_says_what_would_happen_and_nothing_changes(bed: Bed) -> None:
    bed.source.decision = SmallerRequest(profile="1g.10gb", source="Test", reason="small", shadow=True)
    await bed.add()
    job = await bed.start()
    assert bed.request == {"nvidia.com/gpu": "1"}
    assert "kgwe.nvidia.io/original-gpu-request" not in job["spec"]["template"]["metadata"].get("annotations", {})
    await bed.follow()
    told = bed.status["effectiveRequirements"]
    assert (told["original"], told["effective"], told["wouldBe"]) == ("1", "1", "1×1g.10gb")


async def test_a_decision_that_changes_before_the_start_discards_the_plan(bed: Bed) -> None:
    await bed.add()
    await bed.place()
    bed.source.decision = None
    bed.state.renew_decisions(NAMESPACE)
    await bed.start()
    assert bed.request == {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize("later", [None, SmallerRequest(profile="2g.20gb", source="Test")], ids=["revoked", "changed"])
async def test_a_run_keeps_the_request_it_was_planned_with(bed: Bed, later: SmallerRequest | None) -> None:
    await bed.add()
    await bed.start()
    bed.source.decision = later
    bed.state.renew_decisions(NAMESPACE)
    await bed.follow()
    assert bed.status["effectiveRequirements"]["effective"] == "1×1g.10gb"
    held = bed.state.ledger.reserved_seats(bed.uid)
    assert [dict(seat.amounts)[MIG] for seat in held.values()] == [1]


async def test_a_decision_after_the_start_changes_nothing(bed: Bed) -> None:
    bed.source.decision = None
    await bed.add()
    await bed.start()
    bed.source.decision = SLICE
    bed.state.renew_decisions(NAMESPACE)
    await bed.follow()
    assert "effectiveRequirements" not in bed.status
    assert bed.status["requestedGPUs"] == "1"


async def test_what_a_tenant_writes_is_not_believed(bed: Bed) -> None:
    """Neither a status with effective requirements, nor a decision on a Job that KGWE did not sign, has an effect."""
    bed.source.decision = None
    await bed.add()
    forged = {"original": "1", "effective": "1×1g.10gb", "resource": MIG, "source": "me"}
    bed.set_status(resources.GPU_WORKLOAD, "w", {"effectiveRequirements": forged})
    job = await bed.start()
    assert bed.request == {"nvidia.com/gpu": "1"}
    notes = {"kgwe.nvidia.io/request-decision": '{"profile":"1g.10gb","source":"me"}'}
    await bed.client.patch(resources.JOB, job["metadata"]["name"], {"metadata": {"annotations": notes}}, NAMESPACE)
    assert not bed.state.runs[bed.uid].is_signed
    found = bed.state.find_workload(bed.uid)
    assert found is not None
    assert (found.decision, found.resource) == (None, "nvidia.com/gpu")


@pytest.mark.parametrize(
    ("spec", "annotations", "smaller", "why"),
    [
        ({"count": 1}, {}, SLICE, ""),
        ({"count": 1}, {}, SmallerRequest(share=0.5), ""),
        ({"count": 2}, {}, SLICE, "one whole GPU"),
        ({"mig": {"profile": "1g.10gb", "count": 1}}, {}, SLICE, "one whole GPU"),
        ({"count": 1, "minMemoryGB": 40}, {}, SLICE, "minMemoryGB is 40"),
        ({"count": 1, "minMemoryGB": 10}, {}, SLICE, ""),
        ({"count": 1, "minMemoryGB": 10}, {}, SmallerRequest(share=0.5), "minMemoryGB is 10"),
        ({"count": 1, "topology": {"preference": "NVLinkRequired"}}, {}, SLICE, "NVLink"),
        ({"count": 1}, {"kgwe.nvidia.io/optimize": "false"}, SLICE, "optimize"),
        ({"count": 1}, {"gpu-autoscaler.io/optimize": "false"}, SLICE, "optimize"),
        ({"count": 1}, {"kgwe.nvidia.io/sharing": "disabled"}, SLICE, "sharing"),
        ({"count": 1}, {"kgwe.nvidia.io/sharing-mode": "exclusive"}, SLICE, "sharing-mode"),
        ({"count": 1}, {"kgwe.nvidia.io/sharing-mode": "mps"}, SLICE, "sharing-mode"),
        ({"count": 1}, {"kgwe.nvidia.io/sharing-mode": "mps"}, SmallerRequest(share=0.5), ""),
        ({"count": 1}, {"kgwe.nvidia.io/sharing-mode": "nonsense"}, SmallerRequest(share=0.5), "sharing-mode"),
        ({"count": 1}, {"kgwe.nvidia.io/mig-profile": "2g.20gb"}, SLICE, "mig-profile"),
        ({"count": 1}, {"kgwe.nvidia.io/mig-profile": "1g.10gb"}, SLICE, ""),
        ({"count": 1}, {}, SmallerRequest(share=0.7), "0.7"),
        ({"count": 1}, {}, SmallerRequest(profile="x"), "no MIG profile"),
        ({"count": 1}, {}, SmallerRequest(), "one slice or one share"),
        ({"count": 1}, {}, SmallerRequest(profile="1g.10gb", share=0.5), "one slice or one share"),
    ],
)
def test_a_decision_that_the_workload_does_not_allow_is_not_used(
    spec: dict[str, Any], annotations: dict[str, str], smaller: SmallerRequest, why: str
) -> None:
    body = {"metadata": {"name": "w", "annotations": annotations}, "spec": {"gpuRequirements": spec}}
    workload = from_kgwe(msgspec.convert(body, GPUWorkload))
    found = find_objection(workload, smaller)
    assert (why in found) if why else not found
