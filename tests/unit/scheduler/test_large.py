"""16,384 GPUs in one workload: its plan is stored, found again after a restart, and told in a status that fits."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.builders.objects import UID, added, changed, free, leaving, node, pod, removed, workload

from kgwe.apps.scheduler.workloads import workload_status as phases
from kgwe.apps.scheduler.workloads.attempt import Attempt
from kgwe.cluster.state import run_state
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.cluster.workload.manifests import pod_template, run_manifest, workload_ask
from kgwe.cluster.workload.workload import status_patch
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpuworkload_status import GPUWorkloadStatus
from kgwe.placement.planning import planner
from kgwe.placement.planning.plan import Plan

NODES, CARDS = 2_048, 8
GPUS = NODES * CARDS


def state(per_pod, nodes=NODES):
    """The cluster as the API shows it; the scheduler has just started."""
    made = ClusterState()
    for number in range(nodes):
        made.on_node(added(node(f"h100-{number:04}", cpu="200")))
    asked = workload(count=nodes * CARDS)
    made.on_kgwe(added(msgspec.structs.replace(asked, spec=msgspec.structs.replace(asked.spec, gpusPerPod=per_pod))))
    return made


def stored_job(made):
    """The Job of a fresh plan, as the API server gives it back."""
    asking = made.find_workload(UID)
    template = pod_template.build_pod_template(asking, "image")
    plan = planner.make_plan(made.fleet, workload_ask.build_ask(asking, template, frozenset()))
    assert isinstance(plan, Plan), plan.message
    body = run_manifest.build_run(asking, template, plan)
    total = sum(len(key) + len(value) for key, value in body["metadata"]["annotations"].items())
    assert total < 256 * 1024, "what Kubernetes allows of annotations"
    text = msgspec.json.encode(body)
    assert len(text) < 1.5 * 2**20, "what etcd takes as one object"
    body = msgspec.json.decode(text)
    body["metadata"] |= {"uid": "job-1", "labels": body["metadata"]["labels"]}
    return msgspec.convert(body, resources.JOB.type, strict=False), plan


@pytest.mark.parametrize("per_pod", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_a_plan_of_16384_gpus_survives_a_restart(per_pod):
    job, plan = stored_job(state(per_pod))
    assert len(plan.seats) == GPUS // per_pod

    again = state(per_pod)
    again.on_job(added(job))
    assert again.runs[UID].seats == plan.seats
    assert not any(free(again).values()), "every GPU is reserved"
    run, asking = again.runs[UID], again.find_workload(UID)
    assert asking is not None
    why = run_state.find_unplaced(again, asking, run, {})
    assert why is not None
    assert why.reason == run_state.PODS_NOT_CREATED, "no node of the plan is lost"

    patch = status_patch(
        asking, phases.scheduled_status(asking, phases.Placement(run, asking, again.reader.cards), "t1")
    )
    assert patch is not None
    status = msgspec.convert(patch["status"], GPUWorkloadStatus)
    assert (len(status.placements), status.nodeCount, status.allocatedGPUCount) == (512, NODES, GPUS)
    assert len(msgspec.json.encode(patch)) < 128 * 1024


@pytest.mark.parametrize("nodes", [256, pytest.param(NODES, marks=pytest.mark.slow)])
def test_pods_of_a_gang_on_many_nodes_come_run_and_go(nodes):
    job, plan = stored_job(state(8, nodes))
    made = state(8, nodes)
    made.on_job(added(job))
    bound = [
        pod(f"p{number}", at=seat.node, gpus=8, index=number, phase="Pending") for number, seat in enumerate(plan.seats)
    ]
    for each in bound:
        made.on_pod(added(each))
    assert not any(free(made).values())
    assert made.ledger.pod_in(UID, nodes - 1) == f"uid-p{nodes - 1}"

    replaced = pod("new", at=plan.seats[7].node, gpus=8, index=7)
    made.on_pod(changed(bound[7], leaving(bound[7])))
    made.on_pod(added(replaced))
    assert made.ledger.pod_in(UID, 7) == "uid-p7", "it has the seat until it is gone"
    for each in bound:
        made.on_pod(removed(each))
    assert made.ledger.pod_in(UID, 7) == "uid-new"
    made.on_job(removed(job))
    made.on_pod(removed(replaced))
    assert sum(free(made).values()) == nodes * CARDS


def test_a_refusal_late_in_the_start_of_a_gang_has_its_own_time():
    memory = Attempt()
    memory.note_unplaced(100.0, run_state.NOT_SCHEDULED)
    memory.note_unplaced(200.0, run_state.NOT_SCHEDULED)
    assert memory.unplaced_at == 100.0
    memory.note_unplaced(300.0, run_state.NODE_REFUSED)
    assert memory.unplaced_at == 300.0
    memory.note_unplaced(301.0, "")
    assert memory.unplaced_at is None
