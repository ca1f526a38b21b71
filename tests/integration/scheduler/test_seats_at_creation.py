"""The policy kgwe-seats on a real API server: pods of a gang have their seats when they are created."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.clusters import clients, seat_policy
from tests.support.clusters.api_writes import count
from tests.support.clusters.bed import kgwe
from tests.support.clusters.broken import break_nodes, gang, pods_of, racks, running, where
from tests.support.patience import PATIENCE_S

from kgwe.cluster.workload import metadata_keys, placement_annotations
from kgwe.kube.api import core, resources
from kgwe.local.cluster.cluster import service_account_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.clusters.bed import Bed

    from kgwe.kube.client.client import KubeClient

LINE = "01234567.0123456789abcdef0123456789abcdef.n{number} f{number:x} {slices}"
GATE = {"name": placement_annotations.GATE}


@pytest.fixture
async def job_controller(bed: Bed, tmp_path: Path) -> AsyncIterator[KubeClient]:
    """A client with the rights of the Job controller, once the policy is in force."""
    path = service_account_kubeconfig(bed.cluster, "kube-system", "job-controller", tmp_path / "job-controller")
    async with clients.connect(path) as client:
        async with asyncio.timeout(PATIENCE_S):
            while placement_annotations.is_gated(await create(client, index=0)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        yield client


async def create(client: KubeClient, *, index: int, seats: int = 3, slices: str = "", **more: Any) -> core.Pod:
    """The pod as it would be stored."""
    lines = "\n".join(LINE.format(number=number, slices=slices) for number in range(seats))
    notes = {placement_annotations.SEATS_ANNOTATION: lines, placement_annotations.INDEX_ANNOTATION: str(index)}
    labels = {metadata_keys.UID_LABEL: "w-uid", "batch.kubernetes.io/controller-uid": "job-uid"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "labels": labels, "annotations": notes},
        "spec": {"containers": [{"name": "main", "image": "x"}], "schedulingGates": [GATE], **more},
    }
    reply = await client.request("POST", "/api/v1/namespaces/default/pods", body=body, params={"dryRun": "All"})
    return msgspec.json.decode(reply, type=core.Pod, strict=False)


def term(pod: core.Pod, number: int = 0) -> Any:
    required = pod.spec.affinity.nodeAffinity.required
    assert required is not None
    return required.nodeSelectorTerms[number]


# --- the policy -------------------------------------------------------------------------------------------


async def test_a_pod_gets_the_line_of_its_index_of_a_thousand(job_controller: KubeClient):
    made = await create(job_controller, index=999, seats=1000)
    assert not made.spec.schedulingGates
    assert placement_annotations.pinned_node(made.spec) == "n999"
    assert made.metadata.annotations == {
        placement_annotations.INDEX_ANNOTATION: "999",
        placement_annotations.SEAT_ANNOTATION: "w-uid/999",
        placement_annotations.CARDS_ANNOTATION: f"f{999:x}",
        placement_annotations.SIGNATURE_ANNOTATION: LINE.format(number=999, slices="").split(" ")[0],
    }


async def test_slices_and_other_gates_are_kept(job_controller: KubeClient):
    mine = {"name": "example.com/mine"}
    made = await create(job_controller, index=1, slices="0@0,0@4", schedulingGates=[mine, GATE])
    assert made.metadata.annotations[placement_annotations.SLICES_ANNOTATION] == "0@0,0@4"
    assert [gate.name for gate in made.spec.schedulingGates] == ["example.com/mine"]


async def test_the_affinity_of_the_user_holds_as_well(job_controller: KubeClient):
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    field = {"key": "metadata.name", "operator": "NotIn", "values": ["bad"]}
    terms = [{"matchExpressions": [zone]}, {"matchFields": [field]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    made = await create(job_controller, index=2, affinity={"nodeAffinity": required})
    assert [line.key for line in term(made).matchExpressions] == ["zone"]
    assert [line.values for line in term(made).matchFields] == [("n2",)]
    assert [line.values for line in term(made, 1).matchFields] == [("bad",), ("n2",)]

    preferred = {"weight": 1, "preference": {"matchExpressions": [zone]}}
    soft = {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}
    near = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}}
    for affinity in (
        {"nodeAffinity": soft},
        {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}},
        {},
    ):
        made = await create(job_controller, index=0, affinity=affinity)
        assert placement_annotations.pinned_node(made.spec) == "n0"


@pytest.mark.parametrize("index", [3, 1_000_000])
async def test_a_pod_without_a_line_keeps_its_gate(job_controller: KubeClient, index: int):
    assert placement_annotations.is_gated(await create(job_controller, index=index))


async def test_pods_of_other_users_keep_their_gate(bed: Bed, job_controller: KubeClient):
    del job_controller  # the policy is in force
    made = await create(bed.client, index=0)  # a cluster administrator
    assert placement_annotations.is_gated(made)
    assert placement_annotations.SEAT_ANNOTATION not in made.metadata.annotations


# --- whole gangs ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("job_controller")
async def test_a_gang_is_bound_without_a_write_to_its_pods(bed: Bed):
    await racks(bed, {"a": 4})
    replica = await bed.controller()
    before = await count(bed)
    workload, pods = await running(bed, gang("g", 4, level="leaf"), 4)
    writes = await count(bed) - before
    assert writes["pods"] == 4, "each was created, and none was changed"
    (job,) = bed.jobs_of(workload)
    seats = placement_annotations.decode(job.metadata.annotations[placement_annotations.PLAN_ANNOTATION])
    assert [pods[rank].spec.nodeName for rank in range(4)] == [seat.node for seat in seats]
    for rank, pod in pods.items():
        notes = pod.metadata.annotations
        assert notes[placement_annotations.SEAT_ANNOTATION] == f"{workload.metadata.uid}/{rank}"
        assert placement_annotations.SEATS_ANNOTATION not in notes
    assert await replica.metric('kgwe_forged_decisions_total{kind="Pod"}') == 0


@pytest.mark.usefixtures("job_controller")
async def test_after_a_new_plan_pods_wait_for_their_new_seats(bed: Bed):
    await racks(bed, {"a": 5})
    await bed.controller()
    workload, before = await running(bed, gang("g", 3, level="leaf"), 3)
    broken: set[str] = set()
    for _ in range(2):
        broken.add(pods_of(bed, workload)[1].spec.nodeName)
        await break_nodes(bed, *broken)
        await bed.until(lambda: where(bed, workload).get(1, "") not in {"", *broken})
    after = pods_of(bed, workload)
    assert after[0].metadata.uid == before[0].metadata.uid
    (job,) = bed.jobs_of(workload)
    revoked = await bed.client.get(resources.SEAT_REVOCATION, "default")
    assert revoked.spec.jobs == {job.metadata.uid: job.metadata.key}


async def test_without_the_policy_the_scheduler_pins_the_pods(bed: Bed):
    async with seat_policy.removed(bed):
        await racks(bed, {"a": 2})
        await bed.controller()
        workload, pods = await running(bed, kgwe("g", 16), 2)
        (job,) = bed.jobs_of(workload)
        assert placement_annotations.SEATS_ANNOTATION not in job.metadata.annotations
        assert all(placement_annotations.SEAT_ANNOTATION in pod.metadata.annotations for pod in pods.values())
