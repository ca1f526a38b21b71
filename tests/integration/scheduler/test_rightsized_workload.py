"""The example of docs/rightsizing.md on a real cluster: its pod gets the slice that was decided, its spec stays."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import yaml
from tests.support.clusters.bed import ROOT

from kgwe.cluster.workload import rightsizing
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed

SLICE = "nvidia.com/mig-1g.10gb"
EXAMPLE = ROOT / "examples" / "rightsizing.yaml"


def decide(mode: str, image: str) -> dict[str, Any]:
    kind = resources.RIGHTSIZING_DECISION
    smaller = {"resource": SLICE, "profile": "1g.10gb", "reason": "it uses 3 GiB"}
    key = rightsizing.make_workload_key("assistant", image, 1)
    spec = {"mode": mode, "offered": [SLICE], "decisions": {key: smaller}}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "default"}, "spec": spec}


def is_explained(bed: Bed, workload: Any) -> bool:
    return bed.now(workload).status.effectiveRequirements is not None


async def test_a_workload_is_shown_its_slice_in_shadow_mode_and_gets_it_when_enforced(bed: Bed) -> None:
    (body,) = yaml.safe_load_all(EXAMPLE.read_text(encoding="utf-8"))
    image = body["spec"]["podTemplate"]["spec"]["containers"][0]["image"]
    await bed.node("whole", 8)
    await bed.node("cut", 0, more={SLICE: "7"})
    await bed.controller()
    try:
        for mode, wanted, node in (("shadow", "nvidia.com/gpu", "whole"), ("enforce", SLICE, "cut")):
            await bed.client.apply(resources.RIGHTSIZING_DECISION, decide(mode, image), "default")
            made = await bed.submit(body)
            await bed.until_phase(made, "Running")
            await bed.until(functools.partial(is_explained, bed, made))
            found = bed.now(made)
            assert found.spec.gpuRequirements.count == 1, "the spec never changes"
            told = found.status.effectiveRequirements
            assert (told.original, told.reason) == ("1", "it uses 3 GiB")
            assert (told.wouldBe, told.effective) == (("1×1g.10gb", "1") if mode == "shadow" else ("", "1×1g.10gb"))
            (pod,) = bed.pods.store.values()
            assert (pod.spec.nodeName, wanted in pod.spec.containers[0].resources.limits) == (node, True)
            await bed.delete(made)
            await bed.until(lambda: not bed.pods.store)
    finally:
        await bed.client.delete(resources.RIGHTSIZING_DECISION, "default", "default")
