"""From API objects to what placement counts with."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kgwe import errors
from kgwe.kube.api import core
from kgwe.kube.translate import podspec


def pod_spec(**fields: Any) -> core.PodSpec:
    return msgspec.convert(fields, core.PodSpec)


def container(*, limits: dict[str, str] | None = None, restart: str = "", **requests: str) -> dict[str, Any]:
    named = {name.replace("gpu", "nvidia.com/gpu"): text for name, text in requests.items()}
    return {"resources": {"requests": named, "limits": limits or {}}, "restartPolicy": restart}


def node(**fields: Any) -> core.Node:
    metadata = {"name": "n", **fields.pop("metadata", {})}
    return msgspec.convert({"metadata": metadata, **fields}, core.Node)


# --- requests -------------------------------------------------------------------------------------------


def test_containers_run_together_and_a_pod_takes_a_slot():
    spec = pod_spec(containers=[container(cpu="500m", memory="1Gi", gpu="2"), container(cpu="1", gpu="1")])

    assert podspec.sum_requests(spec) == {"cpu": 1500, "memory": 2**30, "nvidia.com/gpu": 3, "pods": 1}


def test_a_sum_may_be_changed_by_its_reader():
    spec = pod_spec(containers=[container(cpu="1")])

    podspec.sum_requests(spec)["cpu"] = 7

    assert podspec.sum_requests(spec)["cpu"] == 1000


def test_a_pod_that_asks_for_nothing_takes_a_slot():
    assert podspec.sum_requests(pod_spec(containers=[container()])) == {"pods": 1}


def test_limits_stand_in_for_missing_requests_one_by_one():
    spec = pod_spec(containers=[container(limits={"cpu": "4", "nvidia.com/gpu": "2"}, cpu="1")])

    assert podspec.sum_requests(spec) == {"cpu": 1000, "nvidia.com/gpu": 2, "pods": 1}


def test_init_containers_run_one_after_another_before_the_others():
    spec = pod_spec(
        initContainers=[container(cpu="3", gpu="1"), container(cpu="2", memory="5Gi")],
        containers=[container(cpu="1", gpu="2"), container(cpu="1")],
    )

    assert podspec.sum_requests(spec) == {"cpu": 3000, "memory": 5 * 2**30, "nvidia.com/gpu": 2, "pods": 1}


#                       time ─►
#   init a (2)   ██
#   sidecar (1)     ████████████
#   init b (3)      ███
#   main (1)            ████████
def test_a_sidecar_runs_beside_everything_after_it():
    spec = pod_spec(
        initContainers=[container(cpu="2"), container(cpu="1", restart="Always"), container(cpu="3")],
        containers=[container(cpu="1")],
    )

    assert podspec.sum_requests(spec)["cpu"] == 4000


def test_sidecars_count_among_the_running_when_those_are_more():
    spec = pod_spec(
        initContainers=[container(gpu="1", restart="Always"), container(gpu="1", restart="Always"), container(gpu="1")],
        containers=[container(gpu="4")],
    )

    assert podspec.sum_requests(spec)["nvidia.com/gpu"] == 6


def test_overhead_of_the_runtime_comes_on_top():
    spec = pod_spec(containers=[container(cpu="1")], overhead={"cpu": "250m", "memory": "64Mi"})

    assert podspec.sum_requests(spec) == {"cpu": 1250, "memory": 64 * 2**20, "pods": 1}


def test_what_a_pod_asks_for_as_a_whole_replaces_what_its_containers_ask_for():
    spec = pod_spec(containers=[container(cpu="1", gpu="1")], resources={"requests": {"cpu": "3"}})

    assert podspec.sum_requests(spec) == {"cpu": 3000, "nvidia.com/gpu": 1, "pods": 1}


@pytest.mark.parametrize(
    "text",
    [
        "1e30",
        "12E",
        "8Ei",
        "99999999999999999999999m",
        "9223372036854775808",
        "123456789012345678901234567890",
        "1e400",
    ],
)
def test_more_than_can_be_counted_is_the_most_there_is(text):
    """The API server stores such numbers. Whoever asks for them fits nowhere, which is not a failure of ours."""
    spec = pod_spec(containers=[container(gpu=text, cpu="1"), container(memory=text)])

    assert podspec.sum_requests(spec) == {"nvidia.com/gpu": 2**20, "memory": 2**48, "cpu": 1000, "pods": 1}


@pytest.mark.parametrize("resource", ["cpu", "memory", "gpu", "ephemeral-storage"])
def test_the_sum_over_containers_is_cut_to_more_than_any_node_offers(resource):
    """Two containers of 2^63-1 bytes are more than 64 bits hold."""
    most: dict[str, Any] = {resource: "9223372036854775807"}
    asked = pod_spec(containers=[container(**most)] * 2)
    name = resource.replace("gpu", "nvidia.com/gpu")
    offer = node(status={"allocatable": {name: "9223372036854775807"}})

    assert podspec.sum_requests(asked)[name] <= 2**48
    assert podspec.read_allocatable(offer)[name] < podspec.sum_requests(asked)[name]


@pytest.mark.parametrize("text", ["", "lots", "-1", "-1e30", "0x10", "1.5", "1 Gi", "1e", "1ee3", "1.2.3", "१"])
def test_what_is_no_number_of_gpus_is_an_error_that_quotes_it(text):
    """Templates of workloads are not checked by the API server."""
    with pytest.raises(errors.Permanent) as caught:
        podspec.sum_requests(pod_spec(containers=[container(gpu=text)]))

    assert f'"{text}"' in str(caught.value)


# --- nodes ----------------------------------------------------------------------------------------------


def test_a_node_offers_what_is_allocatable():
    offered = podspec.read_allocatable(
        node(
            status={
                "capacity": {"cpu": "8", "nvidia.com/gpu": "8"},
                "allocatable": {"cpu": "7500m", "nvidia.com/gpu": "6"},
            }
        )
    )

    assert offered == {"cpu": 7500, "nvidia.com/gpu": 6}


def test_gpus_that_allocatable_does_not_mention_are_taken_from_capacity_and_nothing_else_is():
    status = {
        "capacity": {"cpu": "8", "nvidia.com/gpu": "8", "nvidia.com/mig-1g.5gb": "7"},
        "allocatable": {"memory": "1Gi"},
    }

    assert podspec.read_allocatable(node(status=status)) == {
        "memory": 2**30,
        "nvidia.com/gpu": 8,
        "nvidia.com/mig-1g.5gb": 7,
    }


def test_a_node_whose_gpus_are_all_unhealthy_offers_none():
    status = {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "0"}}

    assert podspec.read_allocatable(node(status=status)) == {"nvidia.com/gpu": 0}
