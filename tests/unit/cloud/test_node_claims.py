"""NodeClaims for Karpenter: the contract on an API server in memory, and the real CRD where its module is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from tests.support.contracts.provider import CONTRACT
from tests.support.fakes.karpenter_bed import KarpenterBed

from kgwe.cloud.kubernetes.node_claims import KarpenterClaims, make_claim, read_failure
from kgwe.cloud.provider import LaunchErrorKind, LaunchRequest
from kgwe.placement.fleet.taints import Taint


@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
async def test_contract(clause):
    await clause(KarpenterBed())


async def test_a_template_that_names_no_node_class_is_refused_before_anything_is_created():
    bed = KarpenterBed()
    result = await bed.provider.launch(
        LaunchRequest(request_id="r", pool="p", instance_type="t", zone="z", template="x")
    )
    assert result.error is not None
    assert result.error.kind is LaunchErrorKind.BAD_TEMPLATE
    assert bed.count_alive() == 0


async def test_a_karpenter_that_does_nothing_is_asked_again_and_shows_what_is_under_way():
    bed = KarpenterBed()
    bed.api.on_change = lambda _: None
    provider = KarpenterClaims(bed.client, cluster="test", poll_s=0.01, wait_s=0.05)
    result = await provider.launch(bed.make_request("r-1", 2))
    assert result.error is not None
    assert result.error.is_retryable
    assert [each.provider_id for each in await provider.list_instances()] == [
        "karpenter:///r-1-0",
        "karpenter:///r-1-1",
    ]
    await provider.terminate(["karpenter:///r-1-0"])
    assert len(await provider.list_instances()) == 1


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("MaxSpotInstanceCountExceeded: Max spot instance count exceeded", LaunchErrorKind.QUOTA),
        ("Quota 'NVIDIA_H100_GPUS' exceeded", LaunchErrorKind.QUOTA),
        ("UnauthorizedOperation: You are not authorized", LaunchErrorKind.AUTHENTICATION),
        ("InvalidParameterValue: bad", LaunchErrorKind.BAD_TEMPLATE),
        ("RequestLimitExceeded: slow down", LaunchErrorKind.THROTTLED),
        ("something else", LaunchErrorKind.TRANSIENT),
    ],
)
def test_the_words_of_a_failed_launch_tell_its_kind(message, kind):
    condition = {"type": "Launched", "status": "Unknown", "reason": "LaunchFailed", "message": message}
    error = read_failure({"status": {"conditions": [condition]}})
    assert error is not None
    assert error.kind is kind


def find_crd() -> Path:
    home = Path(os.environ.get("GOMODCACHE") or Path(os.environ.get("GOPATH") or Path.home() / "go") / "pkg/mod")
    found = home / "sigs.k8s.io/karpenter@v1.15.0/pkg/apis/crds/karpenter.sh_nodeclaims.yaml"
    if not found.exists():
        pytest.skip("the module sigs.k8s.io/karpenter@v1.15.0 is not in Go's module cache")
    return found


def test_a_claim_has_only_fields_of_the_real_definition():
    version = yaml.safe_load(find_crd().read_text())["spec"]["versions"][0]
    assert version["name"] == "v1"
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    request = LaunchRequest(
        request_id="r",
        pool="p",
        instance_type="p5.48xlarge",
        zone="zone-a",
        taints=(Taint("nvidia.com/gpu", "present", "NoSchedule"),),
        template="karpenter.k8s.aws/EC2NodeClass/gpu",
    )
    claim = make_claim("c", request)["spec"]
    assert set(spec["required"]) <= set(claim) <= set(spec["properties"])
    for field in ("requirements", "taints"):
        items = spec["properties"][field]["items"]
        assert all(set(each) <= set(items["properties"]) for each in claim[field])
        assert all(set(items.get("required", ())) <= set(each) for each in claim[field])
    assert set(claim["nodeClassRef"]) == set(spec["properties"]["nodeClassRef"]["required"])
