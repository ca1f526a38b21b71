"""Budgets before the money is spent, with the whole scheduler on a cluster in memory."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.bed import kgwe
from tests.support.fakes.memory_cluster import MemoryCluster

from kgwe.kube.api import resources, timestamp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOUR = 3600
# $10 per hour for a node of 8 GPUs; spot costs a fifth.
RACK = {"node.kubernetes.io/instance-type": "rack"}
SPOT = RACK | {"karpenter.sh/capacity-type": "spot"}


class Clock:
    """The real time, moved."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s

    def pass_midnight(self) -> None:
        now = dt.datetime.fromtimestamp(self(), dt.UTC)
        midnight = dt.datetime.combine(now.date() + dt.timedelta(days=1), dt.time(), dt.UTC)
        self.ahead_s += midnight.timestamp() - self() + 1


class World:
    def __init__(self, cluster: MemoryCluster, prices: str) -> None:
        self.cluster = cluster
        self.clock = Clock()
        self._prices = prices

    @contextlib.asynccontextmanager
    async def scheduler(self, **settings: Any) -> AsyncIterator[None]:
        usual = {"price_files": (self._prices,), "builtin_prices": False, "split_method": "gpu-only"}
        async with self.cluster.scheduler(self.clock, **usual | settings):
            yield

    def budget(self, limit: str, namespace: str = "default", name: str = "b", **spec: Any) -> None:
        body = {
            "metadata": {"name": name},
            "spec": {"limit": limit, "enforcementPolicy": "Block", "period": "Daily"} | spec,
        }
        self.cluster.api.call("POST", f"/apis/kgwe.nvidia.io/v1/namespaces/{namespace}/gpubudgets", body)

    def path(self, namespace: str = "default", name: str = "b") -> str:
        return f"/apis/kgwe.nvidia.io/v1/namespaces/{namespace}/gpubudgets/{name}"

    def status(self, namespace: str = "default", name: str = "b") -> dict[str, Any]:
        return dict(self.cluster.api.call("GET", self.path(namespace, name)).get("status", {}))

    def publish(
        self, spend: str, exceeded_since_s: float | None = None, *, namespace: str = "default", name: str = "b"
    ) -> None:
        """What the cost engine writes."""
        since = None if exceeded_since_s is None else timestamp.format_time(exceeded_since_s)
        until = timestamp.format_time(self.clock())
        body = {"status": {"currentSpend": spend, "spendUntil": until, "exceededSince": since}}
        self.cluster.api.call("PATCH", f"{self.path(namespace, name)}/status", body)

    async def submit(self, name: str, gpus: int = 8, namespace: str = "default", **spec: Any) -> Any:
        return await self.cluster.submit(kgwe(name, gpus, **{"activeDeadlineSeconds": HOUR, **spec}), namespace)

    def read(self, workload: Any) -> dict[str, Any]:
        meta = workload.metadata
        path = resources.GPU_WORKLOAD.path(namespace=meta.namespace, name=meta.name)
        return dict(self.cluster.api.call("GET", path).get("status", {}))

    async def until_running(self, *workloads: Any) -> None:
        await self.cluster.until(lambda: all(self.read(each).get("phase") == "Running" for each in workloads))

    async def until_refused(self, workload: Any, reason: str = "BudgetExceeded") -> str:
        def refused() -> bool:
            found = self.read(workload).get("conditions") or [{}]
            return bool(found[0].get("reason") == reason)

        await self.cluster.until(refused)
        return str(self.read(workload)["conditions"][0]["message"])


@pytest.fixture
async def world(tmp_path) -> AsyncIterator[World]:
    prices = tmp_path / "prices.yaml"
    prices.write_text("prices: [{instanceType: rack, onDemand: 10, spot: 2}]\n")
    async with MemoryCluster() as cluster:
        for number in range(4):
            await cluster.node(f"n{number}", 8, RACK)
        yield World(cluster, str(prices))


async def test_a_workload_is_refused_before_its_money_is_spent(world: World) -> None:
    world.budget("25")
    async with world.scheduler():
        first, second = await world.submit("first"), await world.submit("second")
        await world.until_running(first, second)
        third = await world.submit("third")
        message = await world.until_refused(third)
        assert "Budget default/b has $5.00 left of $25.00" in message
        assert "the workload costs up to $10.00" in message
        assert "The next period begins at" in message
        assert "It could start with: a start in the next period." in message
        assert not [job for job in world.cluster.objects("/apis/batch/v1/jobs") if "third" in job["metadata"]["name"]]
        await world.cluster.until(lambda: world.status().get("waitingWorkloads") == 1)
        assert world.status()["enforcementActive"] is True
        assert float(world.status()["encumbered"]) == pytest.approx(20, abs=0.1)
        cost = world.read(first)["cost"]
        assert cost["ratePerHour"] == "10.0000"
        assert cost["longestSeconds"] == HOUR
        assert cost["budgets"] == ["default/b"]


async def test_ten_workloads_of_one_second_do_not_spend_the_same_money(world: World) -> None:
    world.budget("25")
    async with world.scheduler():
        ten = [await world.submit(f"w{number}", 2) for number in range(12)]
        # Two GPUs for an hour cost 2.50: ten fit, and two do not.
        await world.cluster.until(lambda: sum(world.read(each).get("phase") == "Running" for each in ten) == 10)
        await world.cluster.until(lambda: world.status().get("waitingWorkloads") == 2)
        assert len(world.cluster.objects("/apis/batch/v1/jobs")) == 10


async def test_gpu_hours_are_limited_too_and_other_namespaces_are_not(world: World) -> None:
    world.budget("8", unit="GPUHours")
    async with world.scheduler():
        first, second, other = (
            await world.submit("a"),
            await world.submit("b"),
            await world.submit("c", namespace="free"),
        )
        await world.until_running(first, other)
        assert "Budget default/b has 0.0 GPU-hours left of 8.0 GPU-hours" in await world.until_refused(second)


async def test_published_spend_replaces_encumbrances_and_counts_once(world: World) -> None:
    world.budget("25")
    async with world.scheduler():
        first = await world.submit("first")
        await world.until_running(first)
        # Half of its hour is metered: 5 are spent, and 5 are still encumbered.
        world.clock.ahead_s += HOUR / 2
        world.publish("5")
        await world.cluster.until(lambda: float(world.status().get("encumbered") or 0) == pytest.approx(5, abs=0.1))
        second = await world.submit("second")
        await world.until_running(second)
        assert "$5.00 left" in await world.until_refused(await world.submit("third"))


async def test_the_money_of_a_workload_that_ends_early_is_free_again(world: World) -> None:
    world.budget("12")
    async with world.scheduler():
        first = await world.submit("first")
        await world.until_running(first)
        second = await world.submit("second")
        await world.until_refused(second)
        world.cluster.end_pods()
        await world.until_running(second)


async def test_the_next_period_lifts_a_block(world: World) -> None:
    world.budget("12")
    async with world.scheduler():
        world.publish("11.50")
        waiting = await world.submit("waiting")
        assert "$0.50 left" in await world.until_refused(waiting)
        world.clock.pass_midnight()
        await world.until_running(waiting)


async def test_a_higher_limit_and_a_deleted_budget_lift_a_block(world: World) -> None:
    world.budget("5")
    async with world.scheduler():
        first, second = await world.submit("first"), await world.submit("second")
        assert "is too small: the workload costs up to $10.00" in await world.until_refused(first)
        await world.until_refused(second)
        world.cluster.api.call("PATCH", world.path(), {"spec": {"limit": "12"}})
        await world.cluster.until(
            lambda: "Running" in {world.read(first).get("phase"), world.read(second).get("phase")}
        )
        world.cluster.api.call("DELETE", world.path())
        await world.until_running(first, second)


async def test_a_new_leader_knows_what_is_encumbered(world: World) -> None:
    world.budget("25")
    async with world.scheduler():
        first, second = await world.submit("first"), await world.submit("second")
        await world.until_running(first, second)
    async with world.scheduler():
        assert "$5.00 left" in await world.until_refused(await world.submit("third"))


async def test_an_exhausted_budget_refuses_without_planning(world: World) -> None:
    world.budget("25")
    world.publish("30")
    async with world.scheduler():
        message = await world.until_refused(await world.submit("late", 1))
        assert "Budget default/b is used up: $30.00 spent and $0.00 encumbered of $25.00." in message


async def test_throttled_workloads_start_after_all_others(world: World) -> None:
    world.budget("1000", enforcementPolicy="Throttle")
    world.publish("900")
    async with world.scheduler():
        busy = [await world.submit(f"busy{number}", namespace="free") for number in range(4)]
        await world.until_running(*busy)
        throttled = await world.submit("throttled", priority=500)
        other = await world.submit("other", namespace="free", priority=1)
        await world.cluster.until(lambda: world.read(other).get("phase") == "Pending")
        world.cluster.api.call("DELETE", resources.GPU_WORKLOAD.path(namespace="free", name="busy0"))
        await world.until_running(other)
        assert world.read(throttled).get("phase") == "Pending"
        world.cluster.api.call("DELETE", resources.GPU_WORKLOAD.path(namespace="free", name="busy1"))
        await world.until_running(throttled)


async def test_a_throttled_workload_waits_when_the_expected_spend_exceeds_the_limit(world: World) -> None:
    world.budget("100", enforcementPolicy="Throttle")
    world.publish("95")
    async with world.scheduler():
        assert "has $5.00 left of $100.00" in await world.until_refused(await world.submit("over"))


async def test_an_alert_budget_holds_up_nothing(world: World) -> None:
    world.budget("1", enforcementPolicy="Alert")
    world.publish("5")
    async with world.scheduler():
        await world.until_running(await world.submit("free"))


async def test_the_organization_limits_its_teams(world: World) -> None:
    for name, team in (("ns-a", "a"), ("ns-b", "b")):
        world.cluster.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": {"team": team}}})
    world.budget("100", "kgwe-system", "team-a", scope="Team", teamId="a")
    world.budget("15", "kgwe-system", "org", scope="Organization", teams=["a", "b"])
    async with world.scheduler():
        first = await world.submit("first", namespace="ns-a")
        await world.until_running(first)
        message = await world.until_refused(await world.submit("second", namespace="ns-b"))
        assert "Budget kgwe-system/org has no room; the workload costs up to $10.00. The next period" in message


@pytest.mark.parametrize(("limit", "spent"), [("15.77", "13.11"), ("7.77", "0.11"), ("15.77", "23.11")])
async def test_amounts_of_a_budget_outside_of_the_namespace_stay_in_its_status(
    world: World, limit: str, spent: str
) -> None:
    world.budget(limit, "kgwe-system", "org", scope="Organization")
    world.publish(spent, namespace="kgwe-system", name="org")
    async with world.scheduler():
        message = await world.until_refused(await world.submit("curious"))
    assert "Budget kgwe-system/org" in message
    assert "perator" in message
    assert set(re.findall(r"\$[\d.,]*\d", message)) <= {"$10.00"}, "its own cost is the only amount"


async def test_a_label_does_not_lead_out_of_the_budget_of_the_namespaces_team(world: World) -> None:
    world.cluster.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "ns-a", "labels": {"team": "a"}}})
    world.budget("5", "kgwe-system", "team-a", scope="Team", teamId="a")
    world.budget("5", "ns-b", "forged", scope="Team", teamId="c")
    async with world.scheduler():
        template = {"metadata": {"labels": {"team": "c"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        liar = await world.submit("liar", namespace="ns-a", podTemplate=template)
        assert "Budget kgwe-system/team-a is too small" in await world.until_refused(liar)
        # A team budget outside of kgwe-system counts for no one.
        await world.until_running(await world.submit("other", namespace="ns-b", podTemplate=template))


async def test_cheaper_shapes_are_offered_if_they_have_a_place_and_fit_the_budget(world: World) -> None:
    await world.cluster.node("spot", 8, SPOT)
    world.budget("5")
    async with world.scheduler():
        refused = await world.submit("dear", spotPolicy="Avoid")
        message = await world.until_refused(refused)
        assert "It could start with: spotPolicy: Require, up to $2.00" in message
        await world.until_running(await world.submit("cheap", spotPolicy="Require"))


async def test_the_cost_limit_of_a_workload_is_its_own_budget(world: World) -> None:
    def limited(name: str, limit: str) -> dict[str, Any]:
        body = kgwe(name, 8, activeDeadlineSeconds=HOUR)
        body["metadata"]["annotations"] = {"gpu-autoscaler.io/cost-limit": limit}
        return body

    async with world.scheduler():
        # The last one would keep the scheduler busy for minutes, were it computed.
        texts = {"dear": "9.99", "cheap": "$10", "odd": "x", "endless": "1e999999999"}
        dear, cheap, odd, endless = [await world.cluster.submit(limited(name, limit)) for name, limit in texts.items()]
        assert "costs up to $10.00 (1.0 hours)" in await world.until_refused(dear, "CostLimitExceeded")
        unknown = limited("unknown", "9.99")
        del unknown["spec"]["activeDeadlineSeconds"]
        words = await world.until_refused(await world.cluster.submit(unknown), "CostLimitExceeded")
        assert "(24.0 hours)" in words
        assert "Its run time is unknown, so 24 hours are assumed: set expectedDurationSeconds" in words
        assert "Annotation cost-limit: 'x' is not an amount" in await world.until_refused(odd, "InvalidRequest")
        assert "is not an amount" in await world.until_refused(endless, "InvalidRequest")
        await world.until_running(cheap)


async def test_a_bad_budget_blocks_nothing(world: World) -> None:
    world.budget("5", timeZone="Mars/Olympus")
    world.budget("nothing", name="odd")
    async with world.scheduler():
        await world.until_running(await world.submit("free"))


def spec_of(world: World, workload: Any) -> dict[str, Any]:
    meta = workload.metadata
    path = resources.GPU_WORKLOAD.path(namespace=meta.namespace, name=meta.name)
    return dict(world.cluster.api.call("GET", path)["spec"])


async def test_preemptible_workloads_are_suspended_after_the_grace_and_resume_in_the_next_period(world: World) -> None:
    world.budget("100", enforcementPolicy="Alert", onExceeded="Suspend", gracePeriodMinutes=10)
    async with world.scheduler():
        kept = await world.submit("kept")
        stopped = await world.submit("stopped", preemptible=True)
        other = await world.submit("other", namespace="free", preemptible=True)
        await world.until_running(kept, stopped, other)
        world.publish("120", world.clock())
        await world.cluster.until(lambda: world.status().get("currentSpend") == "120")
        assert not spec_of(world, stopped).get("suspend")
        # The tenant asks to keep it, which counts for idle workloads only.
        keep = {"kgwe.nvidia.io/keep-until": timestamp.format_time(time.time() + 86_400)}
        await world.cluster.client.patch(
            resources.GPU_WORKLOAD, "stopped", {"metadata": {"annotations": keep}}, "default"
        )
        world.clock.ahead_s += 601
        await world.cluster.until(lambda: spec_of(world, stopped).get("suspend"))
        await world.until_refused(stopped, "BudgetExceeded")
        assert not spec_of(world, kept).get("suspend")
        assert not spec_of(world, other).get("suspend")
    # A new leader resumes it when the limit is raised, and suspends it no more.
    async with world.scheduler():
        world.cluster.api.call("PATCH", world.path(), {"spec": {"limit": "500"}})
        await world.until_running(stopped)
        assert not spec_of(world, stopped).get("suspend")


async def test_a_budget_that_is_created_later_counts_what_runs(world: World) -> None:
    async with world.scheduler():
        first = await world.submit("first")
        await world.until_running(first)
        world.budget("15")
        await world.cluster.until(lambda: float(world.status().get("encumbered") or 0) > 0)
        await world.until_refused(await world.submit("second"))


async def test_a_false_run_time_is_found_out_and_others_wait(world: World) -> None:
    """Each says that it runs for a minute. Once they outrun it, the budget has nothing left for others."""
    world.budget("30")
    lie: dict[str, Any] = {"activeDeadlineSeconds": None, "expectedDurationSeconds": 60}
    async with world.scheduler():
        liars = [await world.submit(f"w{number}", 8, **lie) for number in range(2)]
        await world.until_running(*liars)
        assert float(world.read(liars[0])["cost"]["predictedCost"]) < 1
        world.clock.ahead_s += 120
        third = await world.submit("third", 8, **lie)
        message = await world.until_refused(third)
        assert "Budget default/b" in message
        await world.cluster.until(lambda: float(world.status().get("encumbered", 0)) > 100)


async def test_a_deadline_that_its_owner_raises_encumbers_more(world: World) -> None:
    world.budget("25")
    async with world.scheduler():
        first = await world.submit("first", activeDeadlineSeconds=HOUR)
        await world.until_running(first)
        await world.cluster.until(lambda: 9 < float(world.status().get("encumbered", 0)) < 11)
        (job,) = world.cluster.objects("/apis/batch/v1/jobs")
        path = f"/apis/batch/v1/namespaces/default/jobs/{job['metadata']['name']}"
        world.cluster.api.call("PATCH", path, {"spec": {"activeDeadlineSeconds": 2 * HOUR}})
        await world.cluster.until(lambda: 19 < float(world.status().get("encumbered", 0)) < 21)
        second = await world.submit("second", activeDeadlineSeconds=HOUR)
        await world.until_refused(second)
