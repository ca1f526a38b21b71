"""The workloads of `kgwe bench recommendations` and how they follow advice."""

from __future__ import annotations

import pytest

from kgwe import errors
from kgwe.bench.advice.benchmark import Options
from kgwe.bench.advice.workloads import A100, KINDS, Shape, follow_advice, make_fleet, make_workloads
from kgwe.model.simfleet.inventory import expand_fleet
from kgwe.model.simfleet.usage import parse_profile


@pytest.mark.parametrize(
    ("kind", "action", "target", "shape"),
    [
        (0, "MIGProfile", "MIG profile 1g.10gb", Shape(A100, 1, mig_profile="1g.10gb")),
        (2, "Share", "1/8 of a GPU", Shape("L40S", 1, share=0.125)),
        (3, "FewerGPUs", "1 x NVIDIA A100-SXM4-80GB", Shape(A100, 1)),
        (4, "SmallerGPU", "1 x L40S", Shape("L40S", 1)),
    ],
)
def test_advice_is_followed_as_it_is_worded(kind, action, target, shape):
    workload = make_workloads(len(KINDS))[kind]
    changed = follow_advice(workload, action, target)
    assert changed.shape == shape
    assert parse_profile(changed.profile).util >= parse_profile(workload.profile).util


def test_advice_that_cannot_be_read_is_an_error():
    with pytest.raises(errors.Permanent, match="cannot be followed"):
        follow_advice(make_workloads(1)[0], "MIGProfile", "something else")


def test_the_fleet_has_every_pool():
    fleet, nodes = make_fleet(make_workloads(100))
    assert len({node.pool.name for node in expand_fleet(fleet, nodes)}) == len(fleet.pools)


@pytest.mark.parametrize("options", [Options(count=0), Options(room=1.5), Options(meter_s=1.0)])
def test_sizes_that_make_no_sense_are_refused(options):
    with pytest.raises(errors.Permanent):
        options.check()
