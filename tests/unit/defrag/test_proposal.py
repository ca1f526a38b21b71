"""Workloads that never start as they are: `kgwe defrag plan` says so."""

from __future__ import annotations

from typing import Any

import pytest

from kgwe import errors
from kgwe.apps.defrag.proposal import NoMoves, Terms, propose
from kgwe.apps.whatif.scenario import Scenario
from kgwe.cluster import offline
from kgwe.kube.api import core
from kgwe.kube.api.meta import Condition, ObjectMeta
from kgwe.kube.client.informer import Change


@pytest.fixture
def view() -> offline.View:
    """One node with 8 GPUs."""
    made = offline.empty_view()
    offers = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    node = core.Node(ObjectMeta(name="n0"), status=core.NodeStatus(offers, offers, (Condition("Ready", "True"),)))
    made.state.on_node(Change("n0", None, node))
    return made


def submit(view: offline.View, **spec: Any) -> None:
    body = {"apiVersion": "kgwe.nvidia.io/v1", "kind": "GPUWorkload", "metadata": {"name": "big"}, "spec": spec}
    Scenario(view).submit([body], "ml-team")


def test_nothing_waits(view: offline.View) -> None:
    with pytest.raises(errors.NotFound, match="no workload is waiting for GPUs"):
        propose(view, "", Terms())


@pytest.mark.parametrize("name", ["", "big", "ml-team/big"])
@pytest.mark.parametrize(
    ("spec", "reason", "fix"),
    [
        ({"gpuRequirements": {"count": 32}, "gpusPerPod": 16}, "TooLarge", "Set gpusPerPod to 8 or less."),
        (
            {"gpuRequirements": {"count": 4, "topology": {"preference": "NVLinkRequired"}}},
            "TopologyNotMet",
            "Set topology.preference to NVLinkOptimal.",
        ),
    ],
)
def test_what_never_starts_is_refused_with_its_reason(
    view: offline.View, name: str, spec: dict[str, Any], reason: str, fix: str
) -> None:
    submit(view, **spec)
    found = propose(view, name, Terms())
    assert isinstance(found, NoMoves)
    assert (found.waiting.endswith("ml-team/big"), found.reason) == (True, reason)
    assert found.message.startswith("it will not start by waiting, and moves cannot help. 0/1 nodes available")
    assert found.message.endswith(fix)


def test_another_name_does_not_wait(view: offline.View) -> None:
    submit(view, gpuRequirements={"count": 16}, gpusPerPod=16)
    with pytest.raises(errors.NotFound, match=r"small is not waiting for GPUs; waiting: nothing$"):
        propose(view, "small", Terms())
