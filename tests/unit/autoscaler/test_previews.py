"""What the autoscaler would do, and what a drain would do, from one reading of the cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fakes.scaling_bed import ScalingBed

from kgwe import errors
from kgwe.apps.autoscaler.drain_plan import DrainQuestion, format_plan, plan_drain
from kgwe.apps.autoscaler.preview import preview_round
from kgwe.apps.whatif.manifests import Submitted
from kgwe.cli.scaling.drain import parse_deadline
from kgwe.cli.scaling.scale import describe_free
from kgwe.kube.api import timestamp
from kgwe.local.fleet.cloud import CloudRules
from kgwe.store.ledger.price_files import load_book

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def run(test: Callable[[ScalingBed], Awaitable[None]]) -> None:
    async def main() -> None:
        async with ScalingBed(CloudRules()).running() as bed:
            await test(bed)

    asyncio.run(main())


def test_a_preview_shows_the_plan_its_price_and_what_stays_unmet() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy(dryRun=True)
        await bed.add_pod(8)
        await bed.add_pod(1, annotations={"kgwe.nvidia.io/gpu-model": "T4"})
        policies, nodes = list(bed.cluster.policies.values()), bed.cluster.nodes
        (early,) = preview_round(bed.cluster.view, policies, nodes, load_book(()), bed.now_s)
        assert early.status.plan == ()
        (found,) = preview_round(bed.cluster.view, policies, nodes, load_book(()), bed.now_s, at_once=True)
        assert [(each.pool, each.count) for each in found.status.plan] == [("h100", 1)]
        assert found.price_micro == 55_040_000
        assert [each.reason for each in found.status.unmet] == ["NoPoolFits"]
        assert "pool h100 has nodes with another GPU model" in found.status.unmet[0].message

    run(test)


def test_a_simulated_workload_that_fits_is_named() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy()
        await bed.add_pod(4)
        await bed.round(121)
        for _ in range(3):
            await bed.round(2)
        assert await bed.schedule() == 1
        view, policies, nodes = bed.cluster.view, list(bed.cluster.policies.values()), bed.cluster.nodes
        submitted = Submitted(view, "default", timestamp.format_time(bed.now_s))
        submitted.put([gpu_pod("fits", 2), gpu_pod("waits", 8)])
        found = preview_round(view, policies, nodes, load_book(()), bed.now_s, at_once=True)
        told = describe_free(view, found, submitted.uids)
        assert told == "default/fits: fits on the nodes that exist, so nothing is bought for it\n"
        assert [(each.pool, each.count) for each in found[0].status.plan] == [("h100", 1)]

    run(test)


def gpu_pod(name: str, gpus: int) -> dict[str, Any]:
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def test_a_drain_shows_moves_obstacles_and_pods_without_a_place() -> None:
    async def test(bed: ScalingBed) -> None:
        await bed.add_policy()
        names = [await bed.add_pod(4), await bed.add_pod(4), await bed.add_pod(3, owner="Job")]
        await bed.round(121)
        for _ in range(3):
            await bed.round(2)
        assert await bed.schedule() == 3
        view = bed.cluster.view
        homes = {pod.metadata.name: pod.spec.nodeName for pod in view.state.pods.values()}
        plan = plan_drain(DrainQuestion(view, homes[names[0]], bed.now_s + 60, bed.now_s))
        assert (plan.stranded, plan.seconds_left) == (1, 60)
        assert {row.pod.partition("/")[2] for row in plan.pods} == {
            name for name, node in homes.items() if node == homes[names[0]]
        }
        other = plan_drain(DrainQuestion(view, homes[names[2]], None, bed.now_s))
        (row,) = [each for each in other.pods if each.pod == f"default/{names[2]}"]
        assert "Job without" in row.obstacle
        assert "no place" in format_plan(plan)
        leaf = next(iter(bed.cluster.nodes.values())).metadata.labels["fabric.topograph.run/tier-0"]
        assert len(plan_drain(DrainQuestion(view, leaf, None, bed.now_s)).nodes) == 2
        with pytest.raises(errors.Permanent, match="levels of the network"):
            plan_drain(DrainQuestion(view, "nowhere", None, bed.now_s))

    run(test)


def test_deadlines_are_times_or_durations() -> None:
    assert parse_deadline("2h", 100.0) == 7300.0
    assert parse_deadline("1970-01-01T00:01:00Z", 0.0) == 60.0
    assert parse_deadline("1970-01-01T00:01:00", 0.0) == 60.0
    with pytest.raises(errors.Permanent, match="--by"):
        parse_deadline("soon", 0.0)
