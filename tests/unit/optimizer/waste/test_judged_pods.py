"""Pods as the detector judges them."""

from __future__ import annotations

import pytest
from tests.support.builders import optimizer_pods

from kgwe.apps.optimizer.waste.detector import describe_pods


def test_the_only_pod_of_a_job_is_no_gang():
    alone = optimizer_pods.read("train-0")
    assert [each.gang for each in describe_pods([alone], [alone])] == [""]


def test_pods_of_one_job_are_a_gang_even_after_some_have_ended():
    left, ended = optimizer_pods.read("train-0"), optimizer_pods.read("train-1", phase="Succeeded")
    assert [each.gang for each in describe_pods([left], [left, ended])] == ["ml/Job/train"]


def test_a_share_is_charged_as_what_was_asked_for():
    share = optimizer_pods.read(
        "p", limits={"nvidia.com/gpu.shared": "1"}, annotations={"kgwe.nvidia.io/gpu-share": "0.25"}
    )
    (found,) = describe_pods([share], [share])
    assert found.fraction == pytest.approx(0.25)
    assert found.devices is None


def test_whole_gpus_are_charged_as_such_and_slices_by_their_size():
    whole = optimizer_pods.read("p", limits={"nvidia.com/gpu": "2"})
    cut = optimizer_pods.read("q", limits={"nvidia.com/mig-1g.10gb": "1"})
    assert [each.fraction for each in describe_pods([whole, cut], [whole, cut])] == [1.0, None]
