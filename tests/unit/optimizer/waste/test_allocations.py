"""What pods hold of the cluster, as it is metered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders import objects

from kgwe.apps.optimizer.waste.allocations import AllocationReader, divide_gpu
from kgwe.cluster import offline
from kgwe.kube.api import resources
from kgwe.model.gpu import catalog
from kgwe.model.gpu.mig import Placement

GEOMETRY = catalog.find_model("A100-SXM4-80GB").geometry
assert GEOMETRY is not None


def place(profile: str, start: int) -> Placement:
    assert GEOMETRY is not None
    return Placement(GEOMETRY.profile(profile), start)


def hold(limits: dict[str, str], *nodes: Any) -> Any:
    view = offline.empty_view()
    for node in nodes:
        view.state.on_node(objects.added(node))
    spec = {"nodeName": "n1", "containers": [{"name": "main", "resources": {"limits": limits}}]}
    meta = {"name": "p", "namespace": "team", "uid": "uid-p"}
    pod = objects.make(resources.POD.type, {"metadata": meta, "spec": spec, "status": {"phase": "Running"}})
    view.state.on_pod(objects.added(pod))
    return AllocationReader(lambda: view.fleet).find("uid-p")


def test_whole_gpus_are_counted():
    found = hold({"nvidia.com/gpu": "2"}, objects.node("n1"))
    assert (found.form.milli_gpus, found.form.mig_profile, found.gpus) == (2000, "", 2.0)


def test_a_slice_is_a_part_of_its_gpu():
    cut = objects.node("n1", gpus="0", **{"nvidia.com/mig-1g.10gb": "7"})
    found = hold({"nvidia.com/mig-1g.10gb": "1"}, cut)
    assert (found.form.milli_gpus, found.form.mig_profile) == (1000, "1g.10gb")
    assert found.gpus == pytest.approx(1 / 7)


def test_a_pod_on_a_node_that_is_not_known_holds_nothing():
    assert hold({"nvidia.com/gpu": "2"}, objects.node("n2")) is None


def test_more_than_the_node_has_is_not_metered():
    assert hold({"nvidia.com/gpu": "9"}, objects.node("n1")) is None


def test_a_pod_that_is_not_known_holds_nothing():
    view = offline.empty_view()
    assert AllocationReader(lambda: view.fleet).find("uid-p") is None


LAYOUTS = [
    [("1g.10gb", start) for start in range(7)],
    [("3g.40gb", 0), ("3g.40gb", 4)],
    [("3g.40gb", 4), *(("1g.10gb", start) for start in range(4))],
    [("7g.80gb", 0)],
    [("4g.40gb", 0), ("2g.20gb", 4)],
]


@given(layout=st.sampled_from(LAYOUTS), count=st.integers(1, 7))
def test_the_slices_of_a_gpu_are_never_more_than_the_gpu(layout, count):
    cut = [place(*each) for each in layout[:count]]
    parts = [divide_gpu(each, cut, GEOMETRY) for each in cut]
    assert sum(parts) <= 1.0 + 1e-9
    assert all(part > 0 for part in parts)


def test_two_halves_are_a_gpu_and_a_single_small_slice_is_a_seventh():
    halves = [place("3g.40gb", 0), place("3g.40gb", 4)]
    assert divide_gpu(halves[0], halves, GEOMETRY) == pytest.approx(0.5)
    alone = place("1g.10gb", 0)
    assert divide_gpu(alone, [alone], GEOMETRY) == pytest.approx(1 / 7)


def test_slices_of_an_unknown_model_are_divided_by_memory():
    cut = [place("1g.10gb", start) for start in range(4)]
    assert divide_gpu(cut[0], cut, None) == pytest.approx(1 / 4)
