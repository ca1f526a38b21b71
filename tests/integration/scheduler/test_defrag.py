"""`kgwe defrag` on a fragmented cluster: the gang starts after the moves, and they cost what was predicted."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters import commands

from kgwe.apps.defrag import execution
from kgwe.apps.defrag.proposal import ALLOW_MOVE
from kgwe.kube.api import resources
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed
    from tests.support.clusters.pods import Live


def deployment(name: str, replicas: int, gpus: int, annotations: dict[str, str]) -> dict[str, Any]:
    labels = {"app": name}
    wants = {"limits": {amounts.GPU: str(gpus)}}
    container = {"name": "main", "image": "example.com/work:1", "resources": wants}
    said = {"kgwe.nvidia.io/strategy": "spread", "kgwe.nvidia.io/simulated-duration": "1h", **annotations}
    template = {"metadata": {"labels": labels, "annotations": said}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


async def defrag(bed: Bed, *arguments: str) -> tuple[int, Any, str]:
    """Exit code, what was printed as JSON, and the messages."""
    kubeconfig = str(bed.cluster.kubeconfig)
    code, out, err = await commands.kgwe("defrag", *arguments, "-o", "json", "--kubeconfig", kubeconfig)
    return code, json.loads(out) if out else None, err


@pytest.fixture
async def fragmented(live: Live):
    """Four nodes of four GPUs, each half taken by a pod of a Deployment, and a gang that needs two whole nodes."""

    async def make(annotations: dict[str, str]) -> None:
        await live.nodes({"a": 4}, gpus=4)
        await live.scheduler()
        await live.bed.client.create(resources.DEPLOYMENT, deployment("serve", 4, 2, annotations), "default")
        assert len(set((await live.until_bound("serve-", 4)).values())) == 4
        await live.bed.until(lambda: all(p.status.phase == "Running" for p in live.bed.pods.store.values()))
        await live.gang("train", 2, 4)

    yield make
    await live.bed.client.delete(resources.DEPLOYMENT, "serve", "default")


async def test_the_gang_starts_after_the_moves_and_they_cost_what_was_predicted(live: Live, fragmented: Any):
    await fragmented({ALLOW_MOVE: "true"})
    bed = live.bed
    await bed.until(lambda: sum(name.startswith("default/train-") for name in bed.pods.store) == 2)

    code, planned, said = await defrag(bed, "plan", "--min-run", "0s", "--restart", "20s")
    assert code == 0, (planned, said)
    assert planned["waiting"] == "gang default/train"
    assert len(planned["moves"]) == 2
    assert len(planned["nodes"]) == 2
    assert {move["source"] for move in planned["moves"]} == set(planned["nodes"])
    assert planned["gainGpuHours"] == 8
    assert not live.bound("train-")

    code, nothing, said = await defrag(bed, "apply", "train", "--min-run", "0s", "--restart", "20s")
    assert (code, nothing) == (0, None)
    assert "No pod was moved" in said

    began = time.time()
    code, done, said = await defrag(bed, "apply", "train", "--min-run", "0s", "--restart", "20s", "--yes")
    took_s = time.time() - began
    assert code == 0, said
    assert done["started"]
    assert set(live.bound("train-").values()) == {move["source"] for move in done["moved"]}
    assert not live.overbooked()
    # What a pod computes between plan and eviction is lost too: at most four GPUs for as long as the command ran.
    more = done["lostGpuHours"] - done["predictedLostGpuHours"]
    assert -0.001 <= more <= 4 * took_s / 3600 + 0.001
    nodes = await bed.client.list(resources.NODE)
    assert not any(taint.key == execution.TAINT for node in nodes for taint in node.spec.taints)


async def test_pods_that_do_not_consent_are_left_alone(live: Live, fragmented: Any):
    await fragmented({})
    bed = live.bed
    await bed.until(lambda: sum(name.startswith("default/train-") for name in bed.pods.store) == 2)
    code, told, _ = await defrag(bed, "plan", "--min-run", "0s")
    assert (code, told["reason"]) == (1, "NothingMayBeMoved")
    code, told, _ = await defrag(bed, "plan", "--min-run", "0s", "--everyone")
    assert code == 0
    assert not any(move["consents"] for move in told["moves"])


async def test_a_disruption_budget_holds(live: Live, fragmented: Any):
    bed = live.bed
    budget = {"metadata": {"name": "all"}, "spec": {"minAvailable": 4, "selector": {"matchLabels": {"app": "serve"}}}}
    await bed.client.create(resources.POD_DISRUPTION_BUDGET, budget, "default")
    try:
        await fragmented({ALLOW_MOVE: "true"})
        await bed.until(lambda: sum(name.startswith("default/train-") for name in bed.pods.store) == 2)
        code, told, _ = await defrag(bed, "apply", "--min-run", "0s", "--yes")
        assert (code, told["reason"]) == (1, "NothingMayBeMoved")
        assert len(live.bound("serve-")) == 4
    finally:
        await bed.client.delete(resources.POD_DISRUPTION_BUDGET, "all", "default")
