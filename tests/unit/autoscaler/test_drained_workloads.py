"""Pods of GPUWorkloads: KGWE's own pin is no wish of the user, and the spec of the workload says what a pod needs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.builders.objects import UID, added, job, make, node, pod, pod_spec

from kgwe.apps.autoscaler import node_pods
from kgwe.apps.autoscaler.drain_plan import DrainQuestion, plan_drain
from kgwe.cluster import offline
from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources
from kgwe.placement.planning.plan import Seat

LEAF = "fabric.topograph.run/tier-0"
SPINE = "fabric.topograph.run/tier-1"
ALL = 0b11111111


def add_nodes(view: offline.View, **leaves: str) -> None:
    """Add nodes of eight GPUs; the name begins with the model."""
    for name, leaf in leaves.items():
        model = {"h": "NVIDIA-H100-80GB-HBM3", "a": "NVIDIA-A100-SXM4-80GB"}[name[0]]
        made = node(name)
        labels = {LEAF: leaf, SPINE: "spine", "nvidia.com/gpu.product": model}
        view.state.on_node(
            added(msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels=labels)))
        )


def start(view: offline.View, *nodes: str, template: dict[str, Any] | None = None, **wants: Any) -> None:
    """Run a workload with a pod of eight GPUs on each node, as the scheduler does."""
    meta = {"name": "w", "namespace": "team", "uid": UID, "generation": 1}
    spec: dict[str, Any] = {"gpuRequirements": {"count": 8 * len(nodes), **wants}, "gpusPerPod": 8}
    if template:
        spec["podTemplate"] = {"spec": template}
    if len(nodes) > 1:
        spec["distributedConfig"] = {"strategy": "DataParallel", "worldSize": len(nodes)}
    view.state.on_kgwe(added(make(resources.GPU_WORKLOAD.type, {"metadata": meta, "spec": spec})))
    view.state.on_job(added(job(seats=tuple(Seat(name, ALL) for name in nodes), gpus=8)))
    for number, name in enumerate(nodes):
        # The Job of a single pod pins it in its template. Pods of a gang are pinned with their seats.
        notes = {placement_annotations.SEAT_ANNOTATION: f"{UID}/{number}"} if len(nodes) > 1 else {}
        made = pod(f"p{number}", at=name, gpus=8, index=number, notes=notes)
        pinned = make(type(made.spec), pod_spec(8, name, pin=name))
        view.state.on_pod(added(msgspec.structs.replace(made, spec=pinned)))


def moves(view: offline.View, name: str) -> dict[str, str]:
    plan = plan_drain(DrainQuestion(view, name, None, 0.0))
    assert plan.stranded == sum(not row.moves_to for row in plan.pods)
    return {row.pod: row.moves_to for row in plan.pods}


@pytest.fixture
def view() -> offline.View:
    return offline.empty_view()


def test_the_only_pod_of_a_workload_moves_though_its_job_pins_it(view: offline.View) -> None:
    add_nodes(view, h0="leaf-0", h1="leaf-0")
    start(view, "h0")
    assert moves(view, "h0") == {"team/p0": "h1"}


def test_scale_down_reads_the_same_request(view: offline.View) -> None:
    add_nodes(view, h0="leaf-0", a1="leaf-0")
    start(view, "h0", gpuModel="H100")
    (running,) = node_pods.list_running(view, node_pods.read_node_pods(view), 0.0, 0.0)
    assert (running.request.constraints.affinity, running.request.model) == (None, "H100")


def test_a_pin_of_the_user_stays(view: offline.View) -> None:
    add_nodes(view, h0="leaf-0", h1="leaf-0")
    start(view, "h0", template=pod_spec(8, pin="h0"))
    assert moves(view, "h0") == {"team/p0": ""}


def test_a_workload_that_cannot_be_read_any_more_is_read_from_its_pod(view: offline.View) -> None:
    add_nodes(view, h0="leaf-0", h1="leaf-0")
    start(view, "h0", template={"containers": "none"})
    assert moves(view, "h0") == {"team/p0": "h1"}


@pytest.mark.parametrize(("free", "target"), [("a2", ""), ("h2", "h2")])
def test_a_pod_of_a_gang_moves_only_to_the_model_of_its_workload(view: offline.View, free: str, target: str) -> None:
    add_nodes(view, **{"h0": "leaf-0", "h1": "leaf-0", free: "leaf-0"})
    start(view, "h0", "h1", gpuModel="H100")
    assert moves(view, "h0") == {"team/p0": target}


def test_a_gang_stays_in_one_leaf_if_it_must(view: offline.View) -> None:
    add_nodes(view, h0="leaf-0", h1="leaf-0", h2="leaf-1")
    start(view, "h0", "h1", topology={"requiredLevel": "leaf"})
    assert moves(view, "h0") == {"team/p0": ""}
    add_nodes(view, h3="leaf-1")
    assert moves(view, "h0")["team/p0"] in {"h2", "h3"}, "the whole gang moves to the other leaf"


def test_pods_of_one_gang_get_different_places(view: offline.View) -> None:
    add_nodes(view, h0="leaf-0", h1="leaf-0", h2="leaf-1", h3="leaf-1")
    start(view, "h0", "h1")
    assert sorted(moves(view, "leaf-0").values()) == ["h2", "h3"]
