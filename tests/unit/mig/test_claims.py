"""Slices by ResourceClaims: those that were given are in use, and who claims one that is not there is cut for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.fakes.mig_world import World

from kgwe.apps.mig.claims import Claims
from kgwe.kube.api import resources

BUILT = {"3g.40gb": 0.5, "2g.20gb": 0.25, "1g.10gb": 0.125}
AS_BUILT = "3g.40gb@0 2g.20gb@4 1g.10gb@6"
ATTRIBUTES = "device.attributes['gpu.nvidia.com']"


def claim(name: str, *requests: dict[str, Any], pod: str = "", given: str = "") -> Any:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod, "controller": True}
    result = {"driver": "gpu.nvidia.com", "pool": "n", "device": given}
    body = {
        "metadata": {"name": name, "namespace": "team", "ownerReferences": [owner] if pod else []},
        "spec": {"devices": {"requests": [{"name": f"r{i}", "exactly": each} for i, each in enumerate(requests)]}},
        "status": {"allocation": {"devices": {"results": [result]}}} if given else {},
    }
    return msgspec.convert(body, resources.RESOURCE_CLAIM.type)


def request(expression: str, count: int = 1, device_class: str = "mig.nvidia.com", **more: Any) -> dict[str, Any]:
    selectors = [{"cel": {"expression": expression}}]
    return {"deviceClassName": device_class, "count": count, "selectors": selectors, **more}


PROFILE = f"{ATTRIBUTES}.profile == '3g.40gb'"


@pytest.mark.parametrize(
    ("requests", "asked"),
    [
        ([request(PROFILE)], ("3g.40gb", 1)),
        ([request(f'{ATTRIBUTES}.type == "mig" && {ATTRIBUTES}.profile=="1g.10gb+me"', 2)], ("1g.10gb+me", 2)),
        ([request(PROFILE), request(PROFILE)], ("3g.40gb", 2)),
        ([request(PROFILE), request(f"{ATTRIBUTES}.profile == '1g.10gb'")], None),
        ([request(f"{ATTRIBUTES}.uuid in ['MIG-1']")], None),
        ([request(PROFILE, device_class="gpu.nvidia.com")], None),
        ([request(PROFILE, allocationMode="All")], None),
    ],
)
def test_what_a_claim_asks_for(requests: list[dict[str, Any]], asked: tuple[str, int] | None) -> None:
    found = Claims({"c": claim("c", *requests, pod="p")}).requested_slices()
    assert found == ({("team", "p"): asked} if asked else {})


def test_only_claims_of_pods_that_were_given_nothing_yet_ask() -> None:
    claims = {
        "a": claim("a", request(PROFILE)),
        "b": claim("b", request(PROFILE), pod="p", given="MIG-1"),
    }
    assert Claims(claims, lambda pool, device: (pool, device)).requested_slices() == {}
    assert Claims(claims, lambda pool, device: (pool, device)).assigned_uuids() == frozenset({"MIG-1"})
    assert Claims(claims).assigned_uuids() == frozenset(), "nobody knows what it is called"


def world() -> World:
    made = World(cards=1)
    made.strategy(shares=BUILT, allowDynamicReconfig=True)
    made.settle()
    return made


def uuids(made: World) -> dict[str, str]:
    (obj,) = made.gpu_nodes.values()
    return {each.profile: each.uuid for each in obj.status.gpus[0].mig.instances}


def test_a_pod_whose_claim_no_slice_serves_is_cut_for_beside_what_others_claimed() -> None:
    made = world()
    made.claimed["held"] = claim("held", request(PROFILE), pod="other", given=uuids(made)["3g.40gb"])
    made.pod("p", "1g.10gb")
    # It asks by its claim alone.
    bare = msgspec.structs.replace(made.pods["p"].spec, containers=())
    made.pods["p"] = msgspec.structs.replace(made.pods["p"], spec=bare)
    assert made.round() == []
    made.claimed["p"] = claim("p", request(PROFILE), pod="p")
    made.settle()
    assert made.cuts() == ["3g.40gb@0 3g.40gb@4"]


def test_a_workload_is_cut_for_though_the_slice_that_seems_spare_is_claimed() -> None:
    made = world()
    made.workload("w", "3g.40gb")
    assert made.round() == [], "one is spare"
    made.claimed["held"] = claim("held", pod="other", given=uuids(made)["3g.40gb"])
    made.settle()
    assert made.cuts() == ["3g.40gb@0 3g.40gb@4"]


def test_a_whole_card_that_is_claimed_is_not_cut() -> None:
    made = World(1, "a100", cards=2)
    (obj,) = made.gpu_nodes.values()
    made.claimed["held"] = claim("held", pod="other", given=obj.status.gpus[0].uuid)
    made.strategy(shares={"7g.80gb": 0.5}, allowDynamicReconfig=True)
    made.settle()
    assert made.cuts() == ["whole", "7g.80gb@0"]


def test_a_workload_whose_pod_has_its_slice_waits_no_longer_whatever_its_status_says() -> None:
    made = world()
    made.workload("w", "3g.40gb")
    made.claimed["own"] = claim("own", pod="w-pod", given=uuids(made)["3g.40gb"])
    made.pod("w-pod", "1g.10gb")
    meta = msgspec.structs.replace(made.pods["w-pod"].metadata, labels={"kgwe.nvidia.io/workload-uid": "w"})
    spec = msgspec.structs.replace(made.pods["w-pod"].spec, containers=())
    made.pods["w-pod"] = msgspec.structs.replace(made.pods["w-pod"], metadata=meta, spec=spec)
    assert made.round() == []
    assert made.wishes() == [AS_BUILT]
