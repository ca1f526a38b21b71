"""Budgets in the cost engine on an API server in memory: spend, thresholds, projections, alerts, and bad budgets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.support.fakes.memory_api import MemoryApi
from tests.support.fakes.receivers import HttpReceiver

from kgwe.apps import background
from kgwe.apps.cost.budgets.alert_sender import AlertSender
from kgwe.apps.cost.budgets.metrics import BudgetMetrics
from kgwe.apps.cost.budgets.publisher import BudgetPublisher
from kgwe.costing import money
from kgwe.costing.attribution import AttributionRules
from kgwe.costing.books import Sums
from kgwe.costing.segments import Account
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.events import EventRecorder
from kgwe.kube.client.informer import wait_synced
from kgwe.notify.settings import NotifySettings, WebhookSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

# A Wednesday.
START = int(dt.datetime(2026, 11, 18, 12, tzinfo=dt.UTC).timestamp())
DAY = 86_400
DOLLAR = money.MICROS * money.TICKS


@dataclass
class Spending:
    """A ledger: account -> (second, dollars, GPU-hours)."""

    rows: list[tuple[Account, int, float, float]] = field(default_factory=list)

    def add(self, dollars: float, *, at: int = START - 60, hours: float = 0.0, **names: str) -> None:
        self.rows.append((Account(**names), at, dollars, hours))

    def sum_accounts(self, start_s: int, end_s: int) -> dict[Account, Sums]:
        found: dict[Account, Sums] = {}
        for account, at, dollars, hours in self.rows:
            if start_s <= at < end_s:
                found.setdefault(account, Sums()).add(round(dollars * DOLLAR), 0, 0, round(hours * 3600 * 10**6))
        return found


class World:
    def __init__(self) -> None:
        self.api = MemoryApi([resources.GPU_BUDGET])
        self.client = KubeClient(self.api)
        self.ledger = Spending()
        self.registry = CollectorRegistry()
        self.receiver = HttpReceiver()

    @contextlib.asynccontextmanager
    async def publisher(self) -> AsyncIterator[BudgetPublisher]:
        events = EventRecorder(self.client, controller="test", instance="test")
        channels = (WebhookSettings(name="hook", url=self.receiver.url),)
        self.registry = CollectorRegistry()
        async with AlertSender(NotifySettings(channels=channels), self.client, events, "kgwe-system") as sender:
            made = BudgetPublisher(self.client, AttributionRules(), sender, BudgetMetrics(self.registry))
            async with background.run_in_background(iter((made.informer.run(), events.run()))):
                await wait_synced(made.informer)
                yield made
                await sender._routed.flush()
                await events.flush()

    async def publish(self, until_s: int = START) -> None:
        async with self.publisher() as made:
            await made.publish(self.ledger, until_s, "USD")

    def create(self, name: str = "b", namespace: str = "ml", **spec: Any) -> None:
        body = {"metadata": {"name": name}, "spec": {"limit": "100"} | spec}
        self.api.call("POST", f"/apis/kgwe.nvidia.io/v1/namespaces/{namespace}/gpubudgets", body)

    def status(self, name: str = "b", namespace: str = "ml") -> dict[str, Any]:
        path = f"/apis/kgwe.nvidia.io/v1/namespaces/{namespace}/gpubudgets/{name}"
        return dict(self.api.call("GET", path).get("status", {}))

    def condition(self, kind: str, name: str = "b", namespace: str = "ml") -> dict[str, Any]:
        return next((each for each in self.status(name, namespace)["conditions"] if each["type"] == kind), {})

    def received(self) -> list[str]:
        return [request.body.decode() for request in self.receiver.requests]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    with made.receiver.serve():
        yield made


async def test_the_spend_of_the_period_is_published_with_its_breakdown(world: World) -> None:
    world.create()
    world.ledger.add(30, namespace="ml", team="a")
    world.ledger.add(12.5, namespace="ml", team="b")
    world.ledger.add(1000, namespace="other")
    world.ledger.add(1000, namespace="ml", at=START - 40 * DAY)
    await world.publish()
    status = world.status()
    assert status["currentSpend"] == "42.500000"
    assert status["spendUntil"] == "2026-11-18T12:00:00Z"
    assert status["periodStart"] == "2026-11-01T00:00:00Z"
    assert status["utilizationPercent"] == 42.5
    assert status["breakdown"]["byTeam"] == [{"name": "a", "spend": "30.000000"}, {"name": "b", "spend": "12.500000"}]
    assert world.condition("Ready")["status"] == "True"
    assert b'kgwe_budget_utilization_percent{budget_id="ml/b",scope="Namespace"} 42.5' in generate_latest(
        world.registry
    )


async def test_a_budget_of_gpu_hours_counts_gpu_hours(world: World) -> None:
    world.create(unit="GPUHours", period="Daily")
    world.ledger.add(5, namespace="ml", hours=33.25)
    await world.publish()
    assert world.status()["currentSpend"] == "33.250000"


async def test_thresholds_fire_once_per_period_and_again_in_the_next(world: World) -> None:
    world.create(period="Daily", alertThresholds=[0.5, 1.0])
    world.ledger.add(60, namespace="ml", at=START - 8 * 3600)
    await world.publish()
    assert [each["threshold"] for each in world.status()["alerts"]] == [0.5]
    assert len(world.received()) == 1
    assert "has reached 50 % of $100.00" in world.received()[0]
    # A restart, and a second count: nothing is sent again.
    await world.publish(START + 120)
    assert len(world.received()) == 1
    world.ledger.add(60, namespace="ml", at=START + 200)
    await world.publish(START + 300)
    assert [each["threshold"] for each in world.status()["alerts"]] == [0.5, 1.0]
    assert world.status()["exceededSince"] == "2026-11-18T12:05:00Z"
    assert world.condition("Exceeded")["status"] == "True"
    assert '"critical"' in world.received()[-1]
    # The next day starts with nothing spent, and all thresholds are armed again.
    await world.publish(START + DAY)
    assert "alerts" not in world.status()
    assert "exceededSince" not in world.status()
    world.ledger.add(70, namespace="ml", at=START + DAY)
    await world.publish(START + DAY + 60)
    assert [each["threshold"] for each in world.status()["alerts"]] == [0.5]
    assert len([text for text in world.received() if "reached 50 %" in text]) == 2


async def test_an_acknowledged_alert_stays_acknowledged_and_is_not_raised_again(world: World) -> None:
    world.create(alertThresholds=[0.5])
    world.ledger.add(60, namespace="ml")
    await world.publish()
    alerts = [world.status()["alerts"][0] | {"acknowledged": True}]
    path = "/apis/kgwe.nvidia.io/v1/namespaces/ml/gpubudgets/b/status"
    world.api.call("PATCH", path, {"status": {"alerts": alerts}}, content_type="application/merge-patch+json")
    world.ledger.add(10, namespace="ml", at=START + 5)
    await world.publish(START + 60)
    assert world.status()["alerts"] == alerts
    assert len([text for text in world.received() if "reached 50 %" in text]) == 1


async def test_a_count_that_changes_little_is_not_written(world: World) -> None:
    world.create()
    world.ledger.add(10, namespace="ml")
    async with world.publisher() as made:
        await made.publish(world.ledger, START, "USD")
        world.ledger.add(0.01, namespace="ml", at=START + 1)
        await made.publish(world.ledger, START + 60, "USD")
        assert world.status()["spendUntil"] == "2026-11-18T12:00:00Z"
        world.ledger.add(1, namespace="ml", at=START + 61)
        await made.publish(world.ledger, START + 120, "USD")
        assert world.status()["currentSpend"] == "11.010000"
        await made.publish(world.ledger, START + 1200, "USD")
        assert made._metrics.writes <= 3


async def test_spend_that_is_too_fast_is_alerted_once(world: World) -> None:
    world.create(alertThresholds=[1.0])
    for minute in range(0, 360, 10):
        world.ledger.add(1, namespace="ml", at=START - minute * 60 - 1)
    await world.publish()
    assert world.condition("BurningFast")["status"] == "True"
    await world.publish(START + 60)
    assert len([text for text in world.received() if "BudgetBurning" in text]) == 1


async def test_the_projection_has_an_interval_once_days_are_known(world: World) -> None:
    world.create(limit="10000")
    for day in range(1, 11):
        world.ledger.add(100 + day, namespace="ml", at=START - day * DAY)
    await world.publish()
    status = world.status()
    assert float(status["projectedLow"]) < float(status["projectedSpend"]) < float(status["projectedHigh"])
    assert float(status["projectedSpend"]) > float(status["currentSpend"]) + 1000


@pytest.mark.parametrize(
    ("spec", "namespace", "reason"),
    [
        ({"scope": "Team", "teamId": "a"}, "ml", "WrongNamespace"),
        ({"scope": "Organization"}, "ml", "WrongNamespace"),
        ({"timeZone": "Mars/Olympus"}, "ml", "UnknownTimeZone"),
        ({"currency": "EUR"}, "ml", "CurrencyMismatch"),
        ({"limit": "0"}, "ml", "InvalidLimit"),
        ({"limit": "9" * 14}, "ml", "InvalidLimit"),
        ({"limit": "many"}, "ml", "InvalidLimit"),
        ({"matchLabels": {"color": "red"}}, "ml", "UnknownLabel"),
        ({"matchLabels": {"team": "a", "kgwe.nvidia.io/team": "b"}}, "ml", "ContradictoryLabels"),
        ({"enabled": False}, "ml", "Disabled"),
    ],
)
async def test_a_bad_budget_says_what_is_wrong_and_stops_no_other(
    world: World, spec: dict[str, Any], namespace: str, reason: str
) -> None:
    world.create("bad", namespace, **spec)
    world.create("good")
    world.ledger.add(7, namespace="ml")
    await world.publish()
    found = world.condition("Ready", "bad", namespace)
    assert (found["status"], found["reason"]) == ("False", reason)
    assert found["message"].endswith(".")
    assert world.status("good")["currentSpend"] == "7.000000"


async def test_team_project_and_organization_budgets_count_their_accounts(world: World) -> None:
    world.create("team", "kgwe-system", scope="Team", teamId="a")
    world.create("project", "kgwe-system", scope="Project", projectId="p")
    world.create("all", "kgwe-system", scope="Organization")
    world.create("org", "kgwe-system", scope="Organization", teams=["a"], namespaces=["y"])
    world.create("labels", "kgwe-system", scope="Organization", matchLabels={"experiment-id": "e1"})
    world.ledger.add(1, namespace="x", team="a", project="p")
    world.ledger.add(2, namespace="y", team="b", experiment="e1")
    world.ledger.add(4, namespace="z", team="c")
    await world.publish()
    names = ("team", "project", "all", "org", "labels")
    spent = [world.status(name, "kgwe-system")["currentSpend"] for name in names]
    assert spent == ["1.000000", "1.000000", "7.000000", "3.000000", "2.000000"]


async def test_two_budgets_of_the_same_scope_say_so(world: World) -> None:
    world.create("one")
    world.create("two", limit="50")
    await world.publish()
    assert "Budget ml/two limits the same spend" in world.condition("Overlapping", "one")["message"]


async def test_days_of_daylight_saving_begin_at_local_midnight(world: World) -> None:
    world.create(period="Daily", timeZone="Europe/Berlin")
    # On 25 October 2026 the day has 25 hours.
    at = int(dt.datetime(2026, 10, 25, 22, 30, tzinfo=dt.UTC).timestamp())
    world.ledger.add(3, namespace="ml", at=at - 24 * 3600)
    world.ledger.add(5, namespace="ml", at=at - 25 * 3600)
    await world.publish(at)
    status = world.status()
    assert (status["periodStart"], status["periodEnd"]) == ("2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z")
    assert status["currentSpend"] == "3.000000"


async def test_an_alert_goes_to_the_channel_whose_url_is_in_a_secret(world: World) -> None:
    url = base64.b64encode(f"{world.receiver.url}/own".encode()).decode()
    secret = {"metadata": {"name": "alerts"}, "data": {"url": url}}
    world.api.call("POST", "/api/v1/namespaces/kgwe-system/secrets", secret)
    world.create(channels=[{"type": "webhook", "urlFrom": {"name": "alerts", "key": "url"}}], alertThresholds=[0.5])
    world.ledger.add(60, namespace="ml")
    async with world.publisher() as made:
        await made.publish(world.ledger, START, "USD")
        for notifier in made._sender._named.values():
            await asyncio.wait_for(notifier.flush(), 30)
    assert [request.path for request in world.receiver.requests] == ["/own", "/own"]  # a threshold, and the rate
