"""What is said of workloads that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from kgwe.apps.whatif import explain, words
from kgwe.cluster import offline
from kgwe.kube.api import core
from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload
from kgwe.kube.api.meta import Condition, ObjectMeta
from kgwe.kube.client.informer import Change

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
