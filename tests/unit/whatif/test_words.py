"""What an explanation says, and what it says to a user who may not read the objects."""

from __future__ import annotations

import msgspec
import pytest

from kgwe import errors
from kgwe.apps.whatif import parts, subject, words
from kgwe.apps.whatif.explanation import Best, Change, Explanation, Holder, NodeCount, Turn, Waiting, Word
from kgwe.cluster import offline
from kgwe.cluster.workload.workload import from_kgwe
from kgwe.kube.api import resources
from kgwe.kube.client.client import Forbidden
from kgwe.placement.fleet.constraints import Constraints
from kgwe.placement.fleet.node import Gpus, Request, SpotPolicy
from kgwe.placement.gang.request import GangRequest, Hardware
from kgwe.placement.planning.ask import Ask, TopologyRequest


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (SpotPolicy.REQUIRE, "on spot nodes only"),
        (SpotPolicy.AVOID, "avoids spot nodes where other nodes are good enough"),
        (SpotPolicy.ALLOW, ""),
    ],
)
def test_asked_for_names_the_spot_policy(policy: SpotPolicy, said: str) -> None:
    request = Request(Gpus(count=8), spot=policy)
    for ask in (Ask("w", request), Ask("w", request, gang=GangRequest.uniform(request, 2))):
        lines = [line for line in words.describe_ask(ask) if "spot" in line]
        assert bool(lines) == bool(said)
        assert all(said in line for line in lines)


def test_asked_for_names_the_hardware_and_the_limits() -> None:
    near = TopologyRequest(hardware=Hardware.SAME, max_nodes_per_leaf=4, max_gpus_per_leaf=16, max_pods_per_node=1)
    lines = words.describe_ask(Ask("w", Request(Gpus(count=8)), pods=8, nearness=near))
    assert "all on one GPU model and CPU architecture" in lines
    assert "at most 4 nodes per leaf" in lines
    assert "at most 16 GPUs per leaf" in lines
    assert "at most 1 pod per node" in lines
    assert not [line for line in words.describe_ask(Ask("w", Request(Gpus(count=8)), pods=8)) if "model" in line]


@pytest.fixture
def seen() -> offline.View:
    """Nothing is known."""
    return offline.empty_view()


def test_a_user_without_rights_is_told_so_and_each_missing_right_once(seen: offline.View) -> None:
    seen.hidden = (resources.GPU_WORKLOAD, resources.WARP_GPU_WORKLOAD, resources.JOB, resources.POD)
    with pytest.raises(Forbidden) as told:
        subject.find(seen, "too-large", "default", "workload", "kgwe.nvidia.io")
    assert str(told.value) == (
        "You may not read GPUWorkloads in namespace default. Rights to list that you lack:"
        " gpuworkloads.kgwe.nvidia.io, gpuworkloads.gpu.warp.dev, jobs.batch, pods"
    )
    with pytest.raises(Forbidden, match="You may not read GPUWorkloads or pods in namespace default"):
        subject.find(seen, "too-large", "default")


def test_what_is_not_there_is_not_found_where_one_of_the_kinds_could_be_listed(seen: offline.View) -> None:
    seen.hidden, seen.listed = (resources.GPU_WORKLOAD, resources.WARP_GPU_WORKLOAD), (resources.POD,)
    with pytest.raises(errors.NotFound, match="no GPUWorkload or pod named 'x'"):
        subject.find(seen, "x", "default")
    with pytest.raises(Forbidden):
        subject.find(seen, "x", "default", "workload")


def test_an_explanation_leads_with_the_problem_then_the_nearest_node_then_what_would_help() -> None:
    message = "0/2 nodes available for 8 GPUs: 2 insufficient GPUs. Best: n1 (2 free)."
    told = Explanation(
        "GPUWorkload.kgwe.nvidia.io",
        "default",
        "late",
        "Waiting",
        "waiting. None of the 2 nodes that could run it has 8 GPUs free now.",
        asked=("8 GPUs",),
        waiting=Waiting(
            "InsufficientGPU",
            message,
            best=Best("node", "n1", 2, 8, 6),
            nodes=(NodeCount("GPUsTaken", 5, ("n1", "n2"), text="insufficient GPUs"),),
            changes=(Change("FewerGPUs", "ask for 2 GPUs instead of 8 (n1 has 2 free)"),),
            holders=(Holder("workload default/boss", 6.0, "2026-11-17T13:43:00Z"), Holder("pod default/p", 0.5)),
        ),
        turn=Turn(1, 2),
        said=(Word("Scheduled", "False", "InsufficientGPU", message, "2026-11-17T13:00:00Z"),),
        problems=("SchedulerConfig main: label rack is on 0 of 2 nodes",),
    )
    assert (
        words.text(told)
        == f"""\
GPUWorkload.kgwe.nvidia.io default/late: waiting. None of the 2 nodes that could run it has 8 GPUs free now.
  Problems     SchedulerConfig main: label rack is on 0 of 2 nodes
  Blocked by   InsufficientGPU: {message}
  Nearest      node n1: 2 of 8 free, 6 short
               workload default/boss holds 6 GPUs (declared end: 2026-11-17T13:43:00Z)
               pod default/p holds 0.5 GPU (end unknown: it declares no duration)
  Would help (any one of these starts it on the nodes as listed just now):
    - ask for 2 GPUs instead of 8 (n1 has 2 free)
  Asked for    8 GPUs
  Nodes        5 insufficient GPUs (n1, n2 +3)
  Queue        position 1 of 2 waiting workloads that could start
  Last status  Scheduled=False InsufficientGPU: {message} (since 2026-11-17T13:00:00Z)
"""
    )


def test_what_waiting_does_not_help_says_what_to_change() -> None:
    problem = "Each pod asks for 16 GPUs; the largest node has 8"
    fix = "Set gpusPerPod to 8 or less"
    message = f"0/2 nodes available for 16 GPUs: 2 with fewer than 16 whole GPUs. {problem}. {fix}."
    waiting = Waiting("TooLarge", message, binding=problem, hopeless=True, fix=fix)
    told = Explanation("Pod", "default", "p", "Waiting", f"waiting. {problem}.", waiting=waiting)
    assert (
        words.text(told)
        == f"""\
Pod default/p: waiting. {problem}.
  Blocked by   TooLarge: 0/2 nodes available for 16 GPUs: 2 with fewer than 16 whole GPUs.
  Will not start by waiting. {fix}.
"""
    )


def test_a_holder_shows_what_it_holds_of_the_scarce_resource_and_all_known_ends_give_an_estimate() -> None:
    until = "2026-11-17T13:43:00Z"
    holder = Holder("workload default/boss", 6.0, until, "30 cores")
    waiting = Waiting("InsufficientResources", "0/1 nodes available for 1 GPU.", holders=(holder,), free_by=until)
    text = words.text(Explanation("Pod", "default", "p", "Waiting", "waiting.", waiting=waiting))
    assert "workload default/boss holds 30 cores and 6 GPUs (declared end: 2026-11-17T13:43:00Z)" in text
    assert "May start    by 2026-11-17T13:43:00Z, the declared end of enough workloads of the nearest place" in text


def test_advice_of_the_optimizer_is_told_with_the_conditions():
    found = {
        "finding": "Idle",
        "message": "did nothing",
        "recommendation": "suspend it",
        "since": "2026-11-01T10:00:00Z",
    }
    template = {"spec": {"containers": [{"name": "main", "image": "a"}]}}
    body = {
        "metadata": {"name": "w", "namespace": "team"},
        "spec": {"gpuRequirements": {"count": 1}, "podTemplate": template},
        "status": {"optimization": found},
    }
    workload = from_kgwe(msgspec.convert(body, resources.GPU_WORKLOAD.type))
    (word,) = parts.words_of_advice(workload)
    assert (word.type, word.reason, word.message, word.since) == (
        "GPUUnderused",
        "Idle",
        "did nothing",
        "2026-11-01T10:00:00Z",
    )


def test_an_explanation_does_not_control_the_terminal() -> None:
    attack = "\x1b[2J\x07\u202e\u2028"
    told = Explanation("GPUWorkload", "default", "w", "Pending", attack, said=(Word("Idle", "True", "R", attack),))
    assert words.text(told).replace("\n", "").isprintable()


def test_a_label_of_the_selector_forges_no_line() -> None:
    request = Request(Gpus(count=8), constraints=Constraints(selector=(("pool", "a\nPlaced on node x"),)))
    assert r"nodes with pool=a\u000aPlaced on node x" in words.describe_ask(Ask("w", request))
