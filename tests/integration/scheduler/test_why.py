"""Why work is where it is or waits, and what would become of it if things were otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.clusters import commands
from tests.support.clusters.bed import kgwe, warp

from kgwe import errors
from kgwe.apps.whatif import explain, subject, words
from kgwe.apps.whatif.scenario import Scenario
from kgwe.cluster import offline
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.clusters.bed import Bed

    from kgwe.apps.whatif.explanation import Explanation

ON_N1 = {"nodeSelector": {"kubernetes.io/hostname": "n1"}}


async def told(bed: Bed, name: str, kind: subject.Kind | None = None) -> Explanation:
    seen = await offline.read(bed.client)
    return explain.explain(seen, subject.find(seen, name, "default", kind))


async def command(bed: Bed, *arguments: str) -> tuple[int, str, str]:
    return await commands.kgwe(*arguments, "--kubeconfig", str(bed.cluster.kubeconfig))


# --- explain --------------------------------------------------------------------------------------------


async def test_a_workload_that_runs_is_where_its_plan_says_and_nothing_is_wrong(bed: Bed):
    await bed.node("n1")
    await bed.controller()
    running = await bed.submit(kgwe("runs", 4))
    await bed.until_phase(running, "Running")

    found = await told(bed, "runs")
    assert (found.state, found.problems) == ("Running", ())
    assert "no problems found" in found.summary
    assert found.placed is not None
    assert [seat.node for seat in found.placed.seats] == ["n1"]
    assert len(found.placed.seats[0].cards) == 4
    assert found.placed.score
    assert set(found.placed.parts) == {"topology", "resource", "balance"}
    pod = await told(bed, found.placed.seats[0].pod)
    assert pod.kind == "Pod"
    assert "belongs to GPUWorkload default/runs" in pod.summary


async def test_a_workload_that_waits_is_told_what_binds_and_what_would_start_it(bed: Bed):
    await bed.node("n1")
    await bed.node("n2", 6)
    controller = await bed.controller()
    holder = await bed.submit(kgwe("holder", 6, preemptible=True, priority=2000, pod=ON_N1))
    await bed.until_phase(holder, "Running")
    # No scheduler is needed from here on; one would preempt.
    controller.kill()
    await bed.submit(kgwe("late", 8, priority=5000, distributedConfig={"worldSize": 8}))
    await bed.submit(warp("later", 8))

    found = await told(bed, "late")
    assert found.waiting is not None
    assert found.waiting.reason == "InsufficientGPU"
    assert found.waiting.best is not None
    assert (found.waiting.best.domain, found.waiting.best.room, found.waiting.best.needed) == ("n1", 2, 8)
    nodes = {each.verdict: (each.count, each.examples) for each in found.waiting.nodes}
    assert nodes == {"GPUsTaken": (1, ("n1",)), "TooFewGPUs": (1, ("n2",))}
    changes = {change.kind: change for change in found.waiting.changes}
    assert changes["FewerGPUs"].text == "ask for 6 GPUs instead of 8 (n2 has 6 free)"
    assert changes["MorePods"].text.startswith("set gpusPerPod to 2: 4 pods")
    assert changes["Evict"].stops == ("workload default/holder",)
    assert found.turn is not None
    assert (found.turn.place, found.turn.of) == (1, 2)
    # Of lower priority than what runs, and of the small kind.
    behind = await told(bed, "later")
    assert behind.turn is not None
    assert (behind.turn.place, behind.turn.ahead) == (2, ("workload default/late",))
    assert behind.waiting is not None
    assert "Evict" not in {change.kind for change in behind.waiting.changes}
    for text in (words.text(found), words.text(behind)):
        assert "  Would help (any one of these starts it" in text
        assert "  Blocked by   InsufficientGPU: 0/2 nodes available for 8 GPUs: " in text
        assert "workload default/holder holds 6 GPUs (end unknown" in text


async def test_every_suggestion_starts_the_work(bed: Bed):
    """What explain offers is planned, not supposed: the smallest change is made, and the workload runs."""
    await bed.node("n1")
    await bed.controller()
    holder = await bed.submit(kgwe("holder", 6))
    await bed.until_phase(holder, "Running")
    late = await bed.submit(kgwe("late", 8))
    await bed.until_phase(late, "Pending")
    found = await told(bed, "late")
    assert any(word.reason == "InsufficientGPU" for word in found.said)
    assert found.waiting is not None
    fewer = next(change for change in found.waiting.changes if change.kind == "FewerGPUs")
    assert fewer.text.startswith("ask for 2 GPUs instead of 8")

    await bed.edit(late, {"gpuRequirements": {"count": 2}})
    await bed.until_phase(late, "Running")


async def test_a_name_of_both_kinds_is_asked_back(bed: Bed):
    await bed.submit(kgwe("twin", 1))
    await bed.submit(warp("twin", 1))
    seen = await offline.read(bed.client)
    with pytest.raises(errors.Permanent, match=r"gpuworkload\.gpu\.warp\.dev/twin or gpuworkload\.kgwe"):
        subject.find(seen, "twin", "default")
    for prefix, kind in (("gw", "kgwe.nvidia.io"), ("gpuworkload.gpu.warp.dev", "gpu.warp.dev")):
        code, out, err = await command(bed, "explain", f"{prefix}/twin")
        assert (code, err) == (0, "")
        assert out.startswith(f"GPUWorkload.{kind} default/twin")


async def test_what_is_not_there_is_answered_with_what_is(bed: Bed):
    await bed.submit(kgwe("llm-training", 1))
    seen = await offline.read(bed.client)
    with pytest.raises(errors.NotFound, match="did you mean llm-training"):
        subject.find(seen, "llm-trainin", "default")
    with pytest.raises(errors.NotFound, match="add -n default"):
        subject.find(seen, "llm-training", "kube-system")
    with pytest.raises(errors.NotFound, match="kubectl get"):
        subject.find(seen, "xyz", "default")


async def test_the_command_prints_text_json_and_yaml(bed: Bed):
    await bed.submit(kgwe("waits", 4))
    for output in ("json", "yaml"):
        code, out, err = await command(bed, "explain", "waits", "-o", output)
        decode = msgspec.json.decode if output == "json" else msgspec.yaml.decode
        assert (code, err) == (0, "")
        assert decode(out)["waiting"]["reason"] == "NoGPUNodes"
    code, out, err = await command(bed, "explain", "workload/waits", "-n", "default")
    assert code == 0
    assert out.startswith("GPUWorkload.kgwe.nvidia.io default/waits: waiting. No node offers GPUs.")
    code, _, err = await command(bed, "explain", "nope")
    assert code == 1
    assert err.startswith("kgwe: no GPUWorkload or pod")


async def open_node(bed: Bed, **more: Any) -> None:
    """A node that no controller keeps closed any longer because it is new."""
    await bed.node("n1", **more)
    await bed.until(lambda: not bed.nodes.store["n1"].spec.taints)


# --- what if --------------------------------------------------------------------------------------------


async def test_what_if_plans_without_creating(bed: Bed, tmp_path: Path):
    await open_node(bed, labels={"fabric.topograph.run/tier-0": "leaf-1"})
    await bed.submit(kgwe("waits", 8, pod={"nodeSelector": {"pool": "other"}}))
    manifest = tmp_path / "job.yaml"
    manifest.write_text(
        """
apiVersion: batch/v1
kind: Job
metadata: {name: train, annotations: {kgwe.nvidia.io/gang: "true"}}
spec:
  parallelism: 2
  completions: 2
  completionMode: Indexed
  template:
    metadata: {annotations: {kgwe.nvidia.io/gang: "true"}}
    spec:
      containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 8}}}]
"""
    )
    code, out, err = await command(bed, "simulate", "--submit", str(manifest), "--from-cluster", "-o", "json")
    assert (code, err) == (1, "")
    (result,) = msgspec.json.decode(out)["results"]
    assert result["waiting"]["best"] == {"level": "cluster", "domain": "cluster", "room": 1, "needed": 2, "short": 1}

    more = ["--add-nodes", "n1=1", "--level", "required=leaf"]
    code, out, err = await command(bed, "simulate", "--from-cluster", "--submit", str(manifest), *more, "-o", "json")
    assert (code, err) == (0, "")
    answer = msgspec.json.decode(out)
    assert [seat["node"] for seat in answer["results"][0]["wouldGo"]["seats"]] == ["n1", "n1-more-0-0"]
    assert answer["gpus"] == {"nodes": 2, "cards": 16, "free": 16}

    code, out, err = await command(
        bed, "simulate", "--from-cluster", "--submit", str(manifest), "--add-nodes", "dgx-h100=2", "--remove-node", "n1"
    )
    assert (code, err) == (0, "")
    assert "would start on added-0-h100-0000, added-0-h100-0001" in out
    jobs = await bed.client.list(resources.JOB, "default")
    assert [job.metadata.name for job in jobs] == []
    assert set(bed.nodes.store) == {"n1"}


async def test_what_is_submitted_takes_what_those_before_it_left(bed: Bed):
    await open_node(bed)
    scenario = Scenario(await offline.read(bed.client))
    scenario.submit([kgwe("first", 6), kgwe("second", 6), warp("third", 2)], "default")
    results = scenario.answer().results
    assert [each.name for each in results] == [f"workload default/{name}" for name in ("first", "second", "third")]
    assert [each.would_go is not None for each in results] == [True, False, True]
    with pytest.raises(errors.Permanent, match="nothing in it asks for GPUs"):
        Scenario(await offline.read(bed.client)).submit(
            [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}], "default"
        )


async def test_nodes_that_are_taken_away_displace_what_they_hold(bed: Bed):
    await bed.node("n1")
    await bed.node("n2")
    await bed.controller()
    running = await bed.until_phase(await bed.submit(kgwe("runs", 4)), "Running")
    (other,) = {"n1", "n2"} - {running.status.scheduledNode}
    scenario = Scenario(await offline.read(bed.client))
    scenario.remove_node(running.status.scheduledNode)
    scenario.plan_again(running.metadata.uid)
    answer = scenario.answer()
    assert answer.displaced == ("workload default/runs",)
    assert answer.results[0].would_go is not None
    assert answer.results[0].would_go.seats[0].node == other
    with pytest.raises(errors.NotFound, match="no GPU node 'n9'"):
        scenario.remove_node("n9")
