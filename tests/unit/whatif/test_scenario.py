"""Manifests, nodes and levels that are only assumed."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from kgwe import errors
from kgwe.apps.whatif import explain, words
from kgwe.apps.whatif.scenario import Scenario
from kgwe.cli import whatif
from kgwe.cli.subject_name import parse_name
from kgwe.cluster import offline as views
from kgwe.kube.api import core, resources
from kgwe.kube.api.meta import Condition, ObjectMeta
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.informer import Change
from kgwe.kube.transport.httpx_transport import HttpxTransport

LEAF = "fabric.topograph.run/tier-0"
SPINE = "fabric.topograph.run/tier-1"


@pytest.fixture
def scenario() -> Scenario:
    """Two leaves of two nodes with 8 GPUs each."""
    view = views.empty_view()
    view.state.priority_classes["high"] = 1000
    for number in range(4):
        node = make_node(f"n{number}", leaf=f"leaf-{number // 2}")
        view.state.on_node(Change(node.metadata.name, None, node))
    return Scenario(view)


def make_node(name: str, leaf: str) -> core.Node:
    offers = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    return core.Node(
        ObjectMeta(name=name, labels={LEAF: leaf, SPINE: "spine"}),
        status=core.NodeStatus(offers, offers, (Condition("Ready", "True"),)),
    )


def pod_spec(gpus: int, **more: Any) -> dict[str, Any]:
    return {"containers": [{"name": "m", "image": "x", "resources": {"limits": {"nvidia.com/gpu": gpus}}}], **more}


def document(api: str, kind: str, name: str, **parts: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **parts.pop("meta", {})}, **parts}


def starts(scenario: Scenario) -> list[bool]:
    return [each.would_go is not None for each in scenario.answer().results]


def test_pods_of_a_pod_group_are_planned_as_one(scenario: Scenario) -> None:
    meta = {"labels": {"scheduling.x-k8s.io/pod-group": "team"}}
    group = document("scheduling.x-k8s.io/v1alpha1", "PodGroup", "team", spec={"minMember": 3})
    pods = [document("v1", "Pod", f"p{n}", meta=meta, spec=pod_spec(8)) for n in range(3)]
    # Whatever their order in the file.
    scenario.submit([*pods, group], "default")
    (result,) = scenario.answer().results
    assert result.name == "gang default/team"
    assert result.would_go is not None
    assert len({seat.node for seat in result.would_go.seats}) == 3


def test_a_gang_that_is_not_whole_is_said_to_wait_for_the_rest(scenario: Scenario) -> None:
    meta = {"annotations": {"kgwe.nvidia.io/gang": "team", "kgwe.nvidia.io/gang-size": "2"}}
    scenario.submit([document("v1", "Pod", "p0", meta=meta, spec=pod_spec(8))], "default")
    (result,) = scenario.answer().results
    assert result.summary == "would wait. gang default/team incomplete: waiting for 1 more pod"


def test_deployments_become_pods_of_their_own(scenario: Scenario) -> None:
    deployment = document("apps/v1", "Deployment", "serve", spec={"replicas": 5, "template": {"spec": pod_spec(8)}})
    scenario.submit([deployment], "default")
    assert starts(scenario) == [True] * 4 + [False]


def test_priorities_are_looked_up_and_unknown_ones_refused(scenario: Scenario) -> None:
    low = document("v1", "Pod", "low", spec=pod_spec(8))
    high = document("v1", "Pod", "high", spec=pod_spec(8, priorityClassName="high"))
    scenario.submit([low, high], "default")
    assert [ask.priority for ask in scenario.view.asks.values()] == [0, 1000]
    with pytest.raises(errors.Permanent, match="PriorityClass 'higher' does not exist"):
        scenario.submit([document("v1", "Pod", "p", spec=pod_spec(1, priorityClassName="higher"))], "default")


def test_what_makes_no_sense_is_named(scenario: Scenario) -> None:
    for spec, problem in (
        (
            {"gpuRequirements": {"count": "many"}},
            'spec.gpuRequirements.count: expected a whole number, found "many"',
        ),
        ({"gpuRequirements": [1]}, "spec.gpuRequirements: expected a mapping, found a list"),
        ({"gpuRequirments": {"count": 1}}, "unknown field spec.gpuRequirments; did you mean gpuRequirements?"),
        (
            {"gpuRequirements": {"count": 1, "topology": {"requiredlevel": "leaf"}}},
            "unknown field spec.gpuRequirements.topology.requiredlevel; did you mean requiredLevel?",
        ),
        ({}, "spec.gpuRequirements is required"),
    ):
        with pytest.raises(errors.Permanent) as caught:
            scenario.submit([document("kgwe.nvidia.io/v1", "GPUWorkload", "bad", spec=spec)], "default")
        assert str(caught.value) == f"GPUWorkload bad: {problem}"
    for text in ("leaf", "best=leaf"):
        with pytest.raises(errors.Permanent, match="required=LEVEL"):
            scenario.set_level(text)


def test_another_level_is_planned_with(scenario: Scenario) -> None:
    work = document("kgwe.nvidia.io/v1", "GPUWorkload", "w", spec={"gpuRequirements": {"count": 24}, "gpusPerPod": 8})
    scenario.set_level("required=leaf")
    scenario.submit([work], "default")
    answer = scenario.answer()
    assert not answer.all_start
    (result,) = answer.results
    assert result.waiting is not None
    assert {change.kind for change in result.waiting.changes} >= {"LowerLevel", "FewerReplicas"}
    assert "required level leaf" in words.what_if(answer)


@pytest.mark.parametrize(("text", "leaves"), [("dgx-h100=2", 1), ("n3=2", 1), ("gb200-nvl72=18", 1)])
def test_nodes_that_are_added_are_used(scenario: Scenario, text: str, leaves: int) -> None:
    before = len(scenario.view.fleet.snapshot)
    whatif._add_nodes(scenario, text, 0)
    fleet = scenario.view.fleet
    count = int(text.rpartition("=")[2])
    assert len(fleet.snapshot) == before + count
    added = [node.name for node in fleet.snapshot.nodes if node.name not in {f"n{n}" for n in range(4)}]
    assert len({node.labels[LEAF] for node in fleet.snapshot.nodes if node.name in added}) == leaves
    # There is one spine, and they hang below it.
    assert len({name for name in fleet.tree.levels[1].names if name}) == 1
    assert scenario.answer().gpus.nodes == before + count


def test_what_cannot_be_added_is_said_so(scenario: Scenario) -> None:
    with pytest.raises(errors.Permanent, match="no GPU node 'h200', and no fleet model"):
        whatif._add_nodes(scenario, "h200=2", 0)
    for text in ("dgx-h100", "dgx-h100=x", "dgx-h100=0"):
        with pytest.raises(errors.Permanent, match="MODEL=COUNT"):
            whatif._add_nodes(scenario, text, 0)


def test_a_workload_that_waiting_does_not_help_has_no_queue_position(scenario: Scenario) -> None:
    work = document("kgwe.nvidia.io/v1", "GPUWorkload", "w", spec={"gpuRequirements": {"count": 24}, "gpusPerPod": 8})
    scenario.set_level("required=row")
    scenario.submit([work], "default")
    text = words.what_if(scenario.answer())
    assert "Levels of this cluster: node, nvlink, leaf, spine, core, zone, cluster." in text
    assert "Will not start by waiting" in text
    assert "Queue" not in text


def test_a_running_pod_is_explained_even_if_it_would_be_refused(scenario: Scenario) -> None:
    pod = bind_pod(scenario, "twoshares", {"nvidia.com/gpu.shared": "2"})
    told = explain.explain(scenario.view, pod)
    assert told.summary == "on n0, placed by default-scheduler"
    assert told.placed is not None
    assert told.problems[0] == (
        "Pod default/twoshares requests 2 nvidia.com/gpu.shared. Several shares do not give more of a GPU and may be of"
        " the same GPU. Request 1."
    )


def test_a_running_pod_is_planned_again(scenario: Scenario) -> None:
    bind_pod(scenario, "whole", {"nvidia.com/gpu": "8"})
    scenario.remove_node("n0")
    scenario.plan_again(whatif._find_owner(scenario.view, parse_name("default/whole"), "elsewhere"))
    assert starts(scenario) == [True]


def test_a_running_gang_is_planned_again(scenario: Scenario) -> None:
    marks = {"kgwe.nvidia.io/gang": "team", "kgwe.nvidia.io/gang-size": "2"}
    for number in range(2):
        bind_pod(scenario, f"p{number}", {"nvidia.com/gpu": "4"}, marks)
    scenario.plan_again(whatif._find_owner(scenario.view, parse_name("pod/default/p0"), "elsewhere"))
    (result,) = scenario.answer().results
    assert result.name == "gang default/team"
    assert result.would_go is not None
    assert len(result.would_go.seats) == 2


def bind_pod(
    scenario: Scenario, name: str, limits: dict[str, str], annotations: dict[str, str] | None = None
) -> core.Pod:
    needs = core.ResourceRequirements(limits=limits, requests=limits)
    pod = core.Pod(
        ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", annotations=annotations or {}),
        core.PodSpec("n0", "default-scheduler", containers=(core.Container("m", resources=needs),)),
        core.PodStatus("Running"),
    )
    scenario.view.state.on_pod(Change(pod.metadata.key, None, pod))
    return pod


async def test_a_view_never_writes() -> None:
    async with KubeClient(HttpxTransport(httpx2.AsyncClient())) as client:
        with pytest.raises(errors.InvariantBroken, match="only reads"):
            await views.read_only(client).delete(resources.POD, "p", "default")
