"""Gangs and plain pods of a real kube-scheduler: why they wait, and whether what was decided can be decided again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from tests.support.clusters import commands
from tests.support.clusters.bed import kgwe

from kgwe.apps.scheduler.recording.files import files
from kgwe.apps.whatif import explain, subject
from kgwe.cluster import offline
from kgwe.kube.api import resources
from kgwe.records import decisions as journal
from kgwe.sim import replay
from kgwe.sim.traces import recorded

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.clusters.bed import Bed
    from tests.support.clusters.pods import Live

    from kgwe.apps.whatif.explanation import Explanation

GANG = {"kgwe.nvidia.io/gang": "train", "kgwe.nvidia.io/gang-size": "2"}


async def told(bed: Bed, name: str) -> Explanation:
    seen = await offline.read(bed.client)
    return explain.explain(seen, subject.find(seen, name, "default"))


async def test_pods_of_gangs_and_of_nobody_are_explained(live: Live):
    await live.nodes({"a": 2})
    await live.scheduler()
    await live.pod("alone", 3)
    await live.until_bound("alone", 1)
    await live.pod("train-0", 8, annotations=GANG)
    await live.pod("plain", 0)
    await live.bed.until(lambda: "default/train-0" in live.bed.pods.store and live.bound("plain"))

    alone = await told(live.bed, "alone")
    assert (alone.state, alone.problems) == ("Placed", ())
    half = await told(live.bed, "train-0")
    assert half.gang is not None
    assert (half.gang.dialect, half.gang.members, half.gang.missing) == ("kgwe", 1, 1)
    assert "Gang default/train is incomplete: 1 of 2 pods exist" in half.summary
    assert (await told(live.bed, "plain")).state == "NotForKGWE"

    await live.pod("train-1", 8, annotations=GANG)
    await live.bed.until(lambda: "default/train-1" in live.bed.pods.store)
    whole = await told(live.bed, "train-1")
    assert whole.waiting is not None
    assert whole.waiting.reason == "InsufficientGPU"
    assert whole.waiting.best is not None
    assert whole.waiting.best.short == 1
    await live.bed.client.delete(resources.POD, "alone", "default", grace_s=0)
    await live.until_bound("train-", 2)
    seated = await told(live.bed, "train-0")
    assert seated.placed is not None
    assert seated.gang is not None
    assert seated.gang.seated == 2


async def test_what_a_real_scheduler_decided_comes_out_the_same(live: Live, tmp_path: Path):
    """Gangs, workloads, plain pods, nodes that come and go, refusals and a change of weights, all recorded."""
    bed = live.bed
    records = tmp_path / "records"
    await live.nodes({"a": 3, "b": 3})
    replica = await live.scheduler(record_directory=str(records), record_max_mb="8")
    for number in range(3):
        await live.gang(f"gang-{number}", 2, gpus=8, required="leaf")
    await live.until_bound("gang-", 4)
    for number in range(4):
        await live.pod(f"one-{number}", 1)
        await bed.submit(kgwe(f"work-{number}", 1 + number, schedulingStrategy=("score", "random")[number % 2]))
    await live.until_bound("one-", 4)
    await bed.node("c-0", 8, labels={"fabric.topograph.run/tier-0": "c", "fabric.topograph.run/tier-1": "s"})
    weights = {"nodeWeights": {"topology": 20, "resource": 60, "balance": 20}}
    await bed.client.apply(resources.SCHEDULER_CONFIG, {"metadata": {"name": "default"}, "spec": weights})
    for number in range(4):
        for rank in range(2):
            await delete_pod(bed, f"gang-{number}-{rank}")
        await live.pod(f"two-{number}", 2)
    await live.until_bound("two-", 4)
    await bed.until(lambda: not live.bound("gang-"))
    await live.gang("last", 2, gpus=8)
    await live.until_bound("last-", 2)
    await bed.client.delete(resources.SCHEDULER_CONFIG, "default")
    assert await replica.metric('kgwe_decision_records_total{result="dropped"}') == 0
    replica.stop()

    outcomes = list(replay.replay(journal.read_lines(files(records))))
    assert [(outcome.where, outcome.difference) for outcome in outcomes if outcome.difference] == []
    assert len({outcome.line.job for outcome in outcomes if outcome.line.refused is None}) >= 12
    assert any(outcome.line.refused is not None for outcome in outcomes)
    assert {outcome.line.by for outcome in outcomes} == {"plan", "extender"}
    assert any(len(outcome.line.seats) > 1 for outcome in outcomes)
    jobs = recorded.read_workload("again", journal.read_lines(files(records))).jobs
    assert {job.pods for job in jobs} == {1, 2}

    code, out, _ = await replayed(records)
    assert code == 0
    assert "all identical" in out
    code, out, _ = await replayed(records, "--policy", "spread", "--json")
    assert code == 0
    spread = msgspec.json.decode(out)
    assert spread["decisions"] == len(outcomes)
    assert spread["moved"] > 0


async def replayed(directory: Path, *more: str) -> tuple[int, str, str]:
    return await commands.kgwe("replay", str(directory), *more)


async def delete_pod(bed: Bed, name: str) -> None:
    if f"default/{name}" in bed.pods.store:
        await bed.client.delete(resources.POD, name, "default", grace_s=0)
