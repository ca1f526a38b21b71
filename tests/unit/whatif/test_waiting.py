"""What is said of workloads that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from kgwe.apps.scheduler.planning.label_notes import LabelNotes
from kgwe.apps.whatif import explain, words
from kgwe.cluster import offline
from kgwe.kube.api import core
from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload
from kgwe.kube.api.kgwe.schedulerconfig import SchedulerConfig, SchedulerConfigSpec, TopologyLabels, TopologyLevel
from kgwe.kube.api.meta import Condition, ObjectMeta
from kgwe.kube.client.informer import Change
from kgwe.placement.planning import planner
from kgwe.placement.refusal import Refusal

if TYPE_CHECKING:
    from kgwe.cluster.offline import View
    from kgwe.cluster.workload.workload import Workload


@pytest.fixture
def view() -> View:
    """Four nodes with 8 GPUs each."""
    seen = offline.empty_view()
    offers = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    for number in range(4):
        status = core.NodeStatus(offers, offers, (Condition("Ready", "True"),))
        node = core.Node(ObjectMeta(name=f"n{number}"), status=status)
        seen.state.on_node(Change(node.metadata.name, None, node))
    return seen


def add(view: View, name: str, status: dict[str, Any] | None = None, **spec: Any) -> Workload:
    """Add a workload that waits."""
    meta = {"name": name, "namespace": "default", "uid": name, "generation": 1}
    said = {"phase": "Pending", "observedGeneration": 1} | (status or {})
    body = {"metadata": meta | {"creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec, "status": said}
    made = msgspec.convert(body, GPUWorkload)
    view.state.on_kgwe(Change(made.metadata.key, None, made))
    view.find_waiting()
    found = view.state.find_workload(name)
    assert found is not None
    return found


def test_a_workload_that_waiting_does_not_help_has_no_estimated_start(view: View) -> None:
    estimate = {"estimatedStart": {"p50": "2026-01-01T01:00:00Z", "p90": "2026-01-01T02:00:00Z"}}
    waits = add(view, "waits", estimate, gpuRequirements={"count": 80}, gpusPerPod=8)
    text = words.text(explain.explain(view, waits))
    assert "Will not start by waiting" in text
    assert "May start" not in text


def test_labels_that_no_node_has_are_named_before_advice_on_size(view: View) -> None:
    levels = (TopologyLevel("leaf", ("example.com/rack",)),)
    config = SchedulerConfig(ObjectMeta("default"), SchedulerConfigSpec(topology=TopologyLabels(levels=levels)))
    view.state.on_config(Change("default", None, config))
    near = {"requiredLevel": "leaf"}
    waits = add(view, "waits", gpuRequirements={"count": 16, "topology": near}, gpusPerPod=8)
    text = words.text(explain.explain(view, waits))
    cause = (
        "SchedulerConfig default: label example.com/rack is on 0 of 4 nodes, so every node counts as its own leaf."
        " Correct the label in the SchedulerConfig."
    )
    assert text.startswith(f"GPUWorkload.kgwe.nvidia.io default/waits: waiting. {cause} Even with nothing running, ")
    assert text.count(cause) == 1
    held = planner.make_plan(view.fleet, view.asks["waits"])
    assert isinstance(held, Refusal)
    assert LabelNotes(view.state).add_note(view.asks["waits"], held).message.startswith(f"{cause} 0/4 leaves available")


def test_labels_of_another_level_are_no_cause(view: View) -> None:
    levels = (TopologyLevel("leaf", ("example.com/rack",)),)
    config = SchedulerConfig(ObjectMeta("default"), SchedulerConfigSpec(topology=TopologyLabels(levels=levels)))
    view.state.on_config(Change("default", None, config))
    waits = add(view, "waits", gpuRequirements={"count": 16, "topology": {"requiredLevel": "node"}}, gpusPerPod=8)
    told = explain.explain(view, waits)
    assert told.summary.startswith("waiting. Even with nothing running, one node holds 1 of 2 pods")
    assert told.problems[0].startswith("SchedulerConfig default: ")


REJECTED = "kube-scheduler rejected node n1: "


@pytest.mark.parametrize(
    ("reason", "message", "counts"),
    [
        ("InsufficientGPU", "0/4 nodes available for 8 GPUs", True),
        ("NodeRefused", f"{REJECTED}insufficient cpu", True),
        ("NodeRefused", f"{REJECTED}didn't match pod affinity rules. Change podAffinity", False),
        ("NodeRefused", f"{REJECTED}pod has unbound immediate PersistentVolumeClaims", False),
        ("NotScheduled", "PersistentVolumeClaim dataset does not exist in namespace default. Create it", False),
        ("PodsNotCreated", "Job created 0 of 1 pod: exceeded quota: team", True),
        ("PodsNotCreated", "Job created 0 of 1 pod: admission webhook denied the request", False),
        ("QuotaExceeded", "exceeded quota: team", True),
        ("AttemptsExhausted", "3 attempts in a row failed, last: NodeRefused", False),
    ],
)
def test_the_queue_counts_only_what_free_gpus_could_start(
    view: View, reason: str, message: str, *, counts: bool
) -> None:
    refused = {"type": "Scheduled", "status": "False", "reason": reason, "message": message}
    add(view, "a-first", {"conditions": [refused]}, gpuRequirements={"count": 8})
    add(view, "b-second", gpuRequirements={"count": 8})
    assert view.list_in_order() == (["a-first", "b-second"] if counts else ["b-second"])


def test_an_edited_workload_counts_again(view: View) -> None:
    refused = {"type": "Scheduled", "status": "False", "reason": "NotScheduled", "message": "no volume"}
    add(view, "edited", {"conditions": [refused], "observedGeneration": 0}, gpuRequirements={"count": 8})
    assert view.list_in_order() == ["edited"]


def test_a_pod_without_its_volume_does_not_count(view: View) -> None:
    refused = Condition(
        "PodScheduled", "False", "Unschedulable", '0/4 nodes are available: persistentvolumeclaim "data" not found.'
    )
    needs = core.ResourceRequirements(limits={"nvidia.com/gpu": "8"}, requests={"nvidia.com/gpu": "8"})
    for name, conditions in (("lacks", (refused,)), ("waits", ())):
        pod = core.Pod(
            ObjectMeta(name, "default", uid=name, creationTimestamp="2026-01-01T00:00:00Z"),
            core.PodSpec(containers=(core.Container("m", resources=needs),)),
            core.PodStatus("Pending", conditions=conditions),
        )
        view.state.on_pod(Change(pod.metadata.key, None, pod))
    view.find_waiting()
    assert view.list_in_order() == ["waits"]


def test_a_budget_that_is_too_small_is_no_reason_to_wait(view: View) -> None:
    said = "Budget default/daily is too small: the workload costs up to $48.00 in one period; the limit is $24.00."
    condition = {"type": "Scheduled", "status": "False", "reason": "BudgetExceeded", "message": said}
    text = words.text(
        explain.explain(view, add(view, "never", {"conditions": [condition]}, gpuRequirements={"count": 1}))
    )
    assert "Will not start by waiting." in text
    assert "Would help" not in text
    left = "Budget default/daily has $4.00 left of $24.00."
    later = add(view, "later", {"conditions": [condition | {"message": left}]}, gpuRequirements={"count": 1})
    text = words.text(explain.explain(view, later))
    assert "Would help   the next period, a higher limit," in text
    assert "GPUs; no single change" not in text


def test_a_replica_is_explained_with_the_number_of_all(view: View) -> None:
    add(view, "chat", gpuRequirements={"count": 1}, workloadType="Inference", replicas=3)
    replica = min((w for w in view.state.workloads.values()), key=lambda w: w.replica)
    assert explain.explain(view, replica).summary.startswith("0 of 3 replicas have a place; replica 0: waiting.")
