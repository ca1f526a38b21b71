"""The engine on an API server in memory: it counts, survives restarts and stores that are away, and tells metrics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import generate_latest
from tests.support.fakes.cost_world import T0, World, make_pod

from kgwe import errors
from kgwe.apps.cost import settings as cost_settings
from kgwe.apps.cost import usage
from kgwe.apps.cost.usage import UsageFeed
from kgwe.costing.attribution import attribute_pod
from kgwe.costing.books import Dimension
from kgwe.model.usage.window import Device, DeviceKey, PodKey, make_window
from kgwe.store.ledger.ledger import Ledger
from kgwe.store.ledger.reader import LedgerReader

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.model.usage.window import UsageWindow


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_it_counts_and_tells_metrics(world):
    async with world.engine() as engine:
        world.create(make_pod("a", 10))
        await world.show("a", bool)
        world.now = T0 + 110
        await engine.count()
        assert engine.problem() is None
        told = generate_latest(world.metrics.registry).decode()
    assert world.costs() == {"ml/a": 150.0}  # 1.50 dollars an hour for 100 seconds
    assert 'kgwe_gpu_cost_per_hour_dollars{namespace="ml",team="vision"} 1.5' in told
    assert 'kgwe_gpu_cost_fleet_per_hour_dollars{line="fleet"} 6.0' in told
    assert "gpu_autoscaler_hourly_cost_rate_usd 6.0" in told
    series = 'gpu_autoscaler_pod_cost_usd{capacity_type="on-demand",gpu_type="L40S",namespace="ml",pod="a"}'
    assert f"{series} {150 / 3600}" in told
    assert f"gpu_autoscaler_total_cost_usd {6.0 * 110 / 3600}" in told
    assert "kgwe_gpu_cost_unbalanced_dollars 0.0" in told
    counted = "kgwe_gpu_cost_counted_until_timestamp_seconds"
    assert world.metrics.registry.get_sample_value(counted) == T0 + 110


async def test_it_continues_after_a_restart_and_names_the_gap(world):
    world.create(make_pod("a", 0))
    async with world.engine() as engine:
        world.now = T0 + 60
        await engine.count()
    world.create(make_pod("b", 100, 160))
    world.now = T0 + 2_000_000
    async with world.engine() as engine:
        await engine.count()
    assert world.costs() == {"ml/a": 1.5 * 2_000_000, "ml/b": 90.0}
    with Ledger.open(world.store, read_only=True) as ledger:
        assert ledger.load_state()["gaps"] == f"[[{T0 + 60},{T0 + 2_000_000}]]"


async def test_an_end_that_is_reported_late_across_a_kill_is_still_counted(world):
    world.create(make_pod("a", 0))
    world.create(make_pod("b", 0))
    async with world.engine() as engine:
        world.now = T0 + 400
        await engine.count()
    # The engine was killed. Now the API shows that one pod ended within the grace, and the other long before.
    for name, end in (("a", 390), ("b", 10)):
        world.end(name, end)
    world.now = T0 + 430
    async with world.engine() as engine:
        await engine.count()
        await engine.count()
    assert world.costs() == {"ml/a": 1.5 * 390, "ml/b": 1.5 * 220}  # what is older than the grace is settled
    world.check_books()


async def test_an_end_from_before_a_kill_may_be_reported_after_the_restart(world):
    world.create(make_pod("a", 0))
    async with world.engine() as engine:
        world.now = T0 + 60
        await engine.count()
    world.now = T0 + 90
    async with world.engine() as engine:
        await engine.count()
        world.end("a", 40)
        await world.show("a", lambda pod: pod.status.phase == "Succeeded")
        world.now = T0 + 120
        await engine.count()
        world.now = T0 + 500
        await engine.count()
    assert world.costs() == {"ml/a": 60.0}
    world.check_books()


async def test_a_pod_that_was_deleted_across_a_kill_keeps_what_it_paid(world):
    world.create(make_pod("a", 0))
    async with world.engine() as engine:
        world.now = T0 + 60
        await engine.count()
    world.api.call("DELETE", "/api/v1/namespaces/ml/pods/a")
    world.now = T0 + 90
    async with world.engine() as engine:
        await engine.count()
    assert world.costs() == {"ml/a": 90.0}
    world.check_books()


async def test_a_clock_that_went_back_counts_nothing_twice(world):
    world.create(make_pod("a", 0))
    async with world.engine() as engine:
        world.now = T0 + 600
        await engine.count()
    world.now = T0 + 300
    async with world.engine() as engine:
        await engine.count()
        world.now = T0 + 700
        await engine.count()
    assert world.costs() == {"ml/a": 1050.0}


async def test_what_a_store_did_not_take_is_stored_by_the_next_count(world, monkeypatch):
    world.create(make_pod("a", 0))
    async with world.engine() as engine:
        put = Ledger.put

        def fail(*_: Any) -> None:
            raise errors.Transient("no space left")

        monkeypatch.setattr(Ledger, "put", fail)
        world.now = T0 + 60
        await engine.count()
        assert engine.problem() == "no space left"
        monkeypatch.setattr(Ledger, "put", put)
        world.now = T0 + 120
        await engine.count()
        assert engine.problem() is None
    assert world.costs() == {"ml/a": 180.0}
    assert world.metrics.failures == 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"split_method": "guess"}, "splitMethod: unknown split method 'guess'"),
        ({"tracking_seconds": 0}, "trackingSeconds must be above 0"),
        ({"grace_seconds": -1}, "graceSeconds must not be negative"),
    ],
)
def test_wrong_settings_are_refused(world, changes, problem):
    with pytest.raises(errors.Permanent, match=problem):
        world.settings(**changes)


class _Source:
    """Half of GPU time was used, but the second minute was not measured."""

    def __init__(self) -> None:
        self.is_down = False

    async def read_window(self, end_s: float, length_s: float, step_s: float) -> UsageWindow:
        if self.is_down:
            await asyncio.Event().wait()
        device = Device(DeviceKey("n1", "GPU-of-the-driver", "", PodKey("ml", "a")))
        window = make_window(end_s - length_s, step_s, round(length_s / step_s), (device,))
        ends = window.ends_s - T0
        window.activity[0, (ends <= 60) | (ends > 120)] = 0.5
        return window

    def problem(self) -> str | None:
        return None

    async def close(self) -> None:
        pass


async def test_use_is_metered_and_what_is_not_measured_stays_unknown(world, monkeypatch):
    monkeypatch.setattr(usage, "_PATIENCE_S", 0.01)
    source = _Source()
    world.create(make_pod("a", 0))
    async with world.engine(usage=UsageFeed(source)) as engine:
        for now in (60, 120, 180, 240):
            world.now = T0 + now
            await engine.count()
        source.is_down = True
        world.now = T0 + 300
        await engine.count()
    with Ledger.open(world.store, read_only=True) as ledger:
        found = LedgerReader(ledger.database).read(T0, T0 + 300, Dimension.POD)
    sums = found.lines["ml/a"]
    # Steps are on a grid of half a minute; those of the last seconds come later.
    measured, used = sums.measured_ticks / 1.5e6, sums.used_ticks / 1.5e6
    assert 100 <= measured <= 180
    assert used == measured / 2
    assert found.books.unbalanced == 0
    assert found.books.idle == sums.idle_ticks > 0


async def test_unused_quota_is_a_line_of_its_own_within_unallocated(world):
    quota = {
        "metadata": {"name": "gpus"},
        "status": {"hard": {"requests.nvidia.com/gpu": "3"}, "used": {"requests.nvidia.com/gpu": "1"}},
    }
    world.api.call("POST", "/api/v1/namespaces/ml/resourcequotas", quota)
    world.create(make_pod("a", 0))
    async with world.engine() as engine:
        world.now = T0 + 100
        await engine.count()
    with Ledger.open(world.store, read_only=True) as ledger:
        found = LedgerReader(ledger.database).read(T0, T0 + 100, Dimension.NAMESPACE)
    assert found.books.unbalanced == 0
    assert found.books.unallocated == 3 * 150_000_000
    assert found.books.quota_held == 2 * 150_000_000
    assert found.lines["ml"].ticks == 150_000_000


async def test_rules_of_operators_come_before_labels_of_users(world, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(
        "attributionRules:\n"
        "- {namespace: m*, labels: {team: vis*}, costCenter: cc-7}\n"
        "- {namespace: m*, team: research, costCenter: cc-9}\n"
        "- {namespace: other, team: nobody}\n"
    )
    rules = cost_settings.load(file, {"store": world.store}).rules
    account = attribute_pod(rules, "ml", {"team": "vision", "user": "ann"}, {}, {})
    assert (account.team, account.cost_center, account.user) == ("research", "cc-7", "ann")
    assert attribute_pod(rules, "x", {"team": "vision"}, {}, {}).team == "vision"


async def test_a_start_that_is_seen_only_after_a_kill_is_still_counted(world):
    world.create(make_pod("a", 0))
    async with world.engine() as engine:
        world.now = T0 + 400
        await engine.count()
    # Both were bound before the kill; one has ended before it, too. The watch had not shown them.
    world.create(make_pod("late", 300))
    world.create(make_pod("short", 310, 350))
    world.create(make_pod("old", 10))
    world.now = T0 + 430
    async with world.engine() as engine:
        await engine.count()
        await engine.count()
        world.create(make_pod("later", 390))
        await world.show("later", bool)
        world.now = T0 + 500
        await engine.count()
        await engine.count()
    rate = 1.5
    assert world.costs() == {
        "ml/a": rate * 500,
        "ml/late": rate * 200,
        "ml/short": rate * 40,
        "ml/old": rate * 280,  # what is older than the grace is settled
        "ml/later": rate * 110,
    }
    world.check_books()
