"""What an explanation says, and what it says to a user who may not read the objects."""

from __future__ import annotations

import pytest

from kgwe import errors
from kgwe.apps.whatif import explain, words
from kgwe.cluster import offline
from kgwe.kube.api import resources
from kgwe.kube.client.client import Forbidden
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
        lines = [line for line in words.asked(ask) if "spot" in line]
        assert bool(lines) == bool(said)
        assert all(said in line for line in lines)


def test_asked_for_names_the_hardware_and_the_limits() -> None:
    near = TopologyRequest(hardware=Hardware.SAME, max_nodes_per_leaf=4, max_gpus_per_leaf=16, max_pods_per_node=1)
    lines = words.asked(Ask("w", Request(Gpus(count=8)), pods=8, nearness=near))
    assert "all on one GPU model and CPU architecture" in lines
    assert "at most 4 nodes per leaf" in lines
    assert "at most 16 GPUs per leaf" in lines
    assert "at most 1 pod per node" in lines
    assert not [line for line in words.asked(Ask("w", Request(Gpus(count=8)), pods=8)) if "model" in line]


@pytest.fixture
def seen() -> offline.View:
    """Nothing is known."""
    return offline.empty()


def test_a_user_without_rights_is_told_so_and_each_missing_right_once(seen: offline.View) -> None:
    seen.hidden = (resources.GPU_WORKLOAD, resources.WARP_GPU_WORKLOAD, resources.JOB, resources.POD)
    with pytest.raises(Forbidden) as told:
        explain.find(seen, "too-large", "default", "workload", "kgwe.nvidia.io")
    assert str(told.value) == (
        "You may not read GPUWorkloads in namespace default. Rights to list that you lack:"
        " gpuworkloads.kgwe.nvidia.io, gpuworkloads.gpu.warp.dev, jobs.batch, pods"
    )
    with pytest.raises(Forbidden, match="You may not read GPUWorkloads or pods in namespace default"):
        explain.find(seen, "too-large", "default")


def test_what_is_not_there_is_not_found_where_one_of_the_kinds_could_be_listed(seen: offline.View) -> None:
    seen.hidden, seen.listed = (resources.GPU_WORKLOAD, resources.WARP_GPU_WORKLOAD), (resources.POD,)
    with pytest.raises(errors.NotFound, match="no GPUWorkload or pod named 'x'"):
        explain.find(seen, "x", "default")
    with pytest.raises(Forbidden):
        explain.find(seen, "x", "default", "workload")
