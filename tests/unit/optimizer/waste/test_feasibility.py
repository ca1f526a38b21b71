"""Whether the cluster has room for an alternative, asked of the engine."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders import objects

from kgwe.apps.optimizer.waste.feasibility import Feasibility, change_request
from kgwe.cluster import offline
from kgwe.cluster.workload import metadata_keys, placement_annotations
from kgwe.forecast.waste.alternatives import Action, Alternative
from kgwe.kube.api import resources
from kgwe.placement.fleet.node import Gpus, Request, SpotPolicy

A100, L40S = "A100-SXM4-80GB", "L40S"


def cluster(*nodes: Any, pod: Any) -> Feasibility:
    view = offline.empty_view()
    for each in nodes:
        view.state.on_node(objects.added(each))
    view.state.on_pod(objects.added(pod))
    return Feasibility(view)


def pod(*, gpus: int = 8, pin: str = "", labels: dict[str, str] | None = None) -> Any:
    """A pod on n1, which its Job may have pinned."""
    body: dict[str, Any] = objects.pod_spec(gpus, "n1")
    if pin:
        placement_annotations.pin_to_node(body, pin)
    meta = {"name": "p", "namespace": "team", "uid": "uid-p", "labels": labels or {}}
    return objects.make(resources.POD.type, {"metadata": meta, "spec": body, "status": {"phase": "Running"}})


def fewer(devices: int) -> Alternative:
    return Alternative(Action.FEWER_GPUS, devices, "")


def test_an_alternative_may_use_what_the_pod_frees():
    room = cluster(objects.node("n1"), pod=pod())
    assert room.check("uid-p", fewer(6)) is True
    assert room.check("uid-p", fewer(9)) is False


def test_a_pod_that_kgwe_pinned_to_its_node_may_move_with_the_alternative():
    room = cluster(
        objects.node("n1"), objects.node("n2", gpus="4"), pod=pod(pin="n1", labels={metadata_keys.UID_LABEL: "w"})
    )
    assert room.check("uid-p", fewer(4)) is True


def test_a_pod_that_its_user_pinned_stays_on_its_node():
    room = cluster(objects.node("n1", gpus="4"), objects.node("n2"), pod=pod(gpus=4, pin="n1"))
    assert room.check("uid-p", fewer(6)) is False
    assert room.check("uid-p", fewer(2)) is True


def test_a_pod_that_is_not_known_is_unknown():
    assert cluster(objects.node("n1"), pod=pod()).check("uid-other", fewer(1)) is None


def test_slices_need_a_node_that_is_cut_or_may_be():
    cut = objects.node("n2", gpus="0", **{"nvidia.com/mig-1g.10gb": "7"})
    wanted = Alternative(Action.MIG_PROFILE, 1, A100, mig_profile="1g.10gb")
    assert cluster(objects.node("n1"), cut, pod=pod()).check("uid-p", wanted) is True
    assert cluster(objects.node("n1"), pod=pod()).check("uid-p", wanted) is False


@pytest.mark.parametrize(
    ("alternative", "gpus", "model", "spot"),
    [
        (
            Alternative(Action.MIG_PROFILE, 2, A100, mig_profile="1g.10gb"),
            Gpus(profile="1g.10gb", slices=2),
            "",
            "allow",
        ),
        (Alternative(Action.SHARE, 1, A100, shares=4), Gpus(milli=250), "", "allow"),
        (Alternative(Action.SMALLER_GPU, 2, L40S), Gpus(count=2), L40S, "allow"),
        (fewer(1), Gpus(count=1), "", "allow"),
        (Alternative(Action.SPOT, 4, A100, is_spot=True), Gpus(count=4), "", "require"),
        (Alternative(Action.SUSPEND, 4, A100), Gpus(count=4), "", "allow"),
    ],
)
def test_requests_are_changed_as_the_alternative_says(alternative, gpus, model, spot):
    made = change_request(Request(Gpus(count=4)), alternative)
    assert (made.gpus, made.model, made.spot) == (gpus, model, SpotPolicy[spot.upper()])
