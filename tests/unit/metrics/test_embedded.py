"""The embedded source over real HTTP: gaps, limits, clock jumps, restarts and finished minutes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import httpx2
import numpy as np
import pytest
from tests.support.fakes.metered_fleet import NODES, MeteredFleet
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.metrics.embedded import EmbeddedSource, ScrapeSettings
from kgwe.metrics.exposition import Scrape
from kgwe.metrics.fields import Field
from kgwe.metrics.holdings import Holding
from kgwe.metrics.targets import CalledTargets, DiscoveredTargets, StaticTargets, make_target
from kgwe.model.usage.window import DeviceKey, PodKey
from kgwe.telemetry import http
from kgwe.telemetry.messages import Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kgwe.model.usage.window import UsageWindow

T0 = 1_800_000_000.0
H100, MIG = NODES["h100"].name, NODES["a100-mig"].name
A = PodKey("team", "a")


@dataclass
class Clock:
    now_s: float = T0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Bed:
    source: EmbeddedSource
    fleet: MeteredFleet
    clock: Clock
    minutes: list[UsageWindow] = field(default_factory=list)

    async def scrape(self, times: int, every_s: float = 15.0) -> None:
        for _ in range(times):
            self.clock.now_s += every_s
            await self.source.scrape_round()

    async def window(self, length_s: float = 600.0, step_s: float = 60.0) -> UsageWindow:
        return await self.source.read_window(self.clock.now_s, length_s, step_s)


@contextlib.asynccontextmanager
async def bed(*pools: str, sink: Callable[[UsageWindow], None] | None = None) -> AsyncIterator[Bed]:
    clock = Clock()
    fleet = MeteredFleet(*pools, now=clock)
    minutes: list[UsageWindow] = []

    async def store(window: UsageWindow) -> None:
        if sink is not None:
            sink(window)
        minutes.append(window)

    async with (
        http.serving(fleet.app, http.Address("127.0.0.1", 0)) as port,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        targets = DiscoveredTargets(f"http://127.0.0.1:{port}/targets", client)
        source = EmbeddedSource(targets, client, now=clock, on_minute=store)
        yield Bed(source, fleet, clock, minutes)


def row_of(window: UsageWindow, pod: PodKey) -> int:
    (row,) = window.find_rows(pod)
    return row


async def test_whole_sliced_and_shared_devices_are_measured():
    async with bed("h100", "a100-mig") as here:
        here.fleet.hold(H100, (0, None), "a", "constant(util=0.8, mem=0.5, noise=0)")
        here.fleet.hold(H100, (1, -1), "b", "constant(util=0.2, mem=0.1, noise=0)")
        here.fleet.hold(H100, (1, -2), "c", "constant(util=0.3, mem=0.1, noise=0)")
        here.fleet.hold(MIG, (0, 5), "d", "constant(util=0.6, mem=0.5, noise=0)")
        await here.scrape(40)
        found = await here.window()
    assert len(found.devices) == 8 + 1 + 24
    whole, shared, sliced = (row_of(found, PodKey("team", name)) for name in "abd")
    assert found.activity[whole] == pytest.approx(np.full(10, 0.8))
    assert found.activity[sliced] == pytest.approx(np.full(10, 0.6))
    assert found.devices[sliced].mig_profile == "2g.20gb"
    assert found.devices[shared].sharers == 2
    assert found.activity[shared] == pytest.approx(np.full(10, 0.5))
    assert found.memory_total_mib[whole][0] == 81559
    assert not np.isnan(found.power_w).any()
    assert here.source.problem() is None


async def test_a_node_that_is_down_leaves_a_gap_and_no_zero():
    async with bed("h100", "l40s") as here:
        here.fleet.hold(H100, (0, None), "a")
        await here.scrape(12)
        here.fleet.down.add(H100)
        await here.scrape(12)
        assert list(here.source.list_failures().values()) == ["returned status 503"]
        here.fleet.down.clear()
        await here.scrape(16)
        found = await here.window()
    activity = found.activity[row_of(found, A)]
    assert activity[:3] == pytest.approx(np.full(3, 0.8))
    assert np.isnan(activity[3:6]).all()
    assert activity[-2:] == pytest.approx(np.full(2, 0.8))
    assert not (activity == 0).any()


async def test_most_exporters_down_is_a_problem():
    async with bed("h100") as here:
        assert here.source.problem() == "exporters have not been listed yet"
        here.fleet.down.add(H100)
        await here.scrape(1)
        assert "1 of 1 exporters fail" in (here.source.problem() or "")
        assert (await here.window()).devices == ()
        here.fleet.down.clear()
        await here.scrape(2)
        assert here.source.problem() is None
        here.clock.now_s += 1000
        assert here.source.problem() == "the newest sample is 1000 s old"


async def test_a_pod_that_is_replaced_yields_two_rows():
    async with bed("h100") as here:
        here.fleet.hold(H100, (0, None), "a")
        await here.scrape(20)
        here.fleet.hold(H100, (0, None), "b", "constant(util=0.3, noise=0)")
        await here.scrape(20)
        found = await here.window()
    first, second = row_of(found, A), row_of(found, PodKey("team", "b"))
    assert np.isnan(found.activity[first, 5:]).all()
    assert np.isnan(found.activity[second, :5]).all()
    assert (found.devices[first].sharers, found.devices[second].sharers) == (1, 1)


async def test_a_clock_that_is_set_back_makes_gaps():
    async with bed("h100") as here:
        await here.scrape(20)
        here.clock.now_s -= 150
        await here.scrape(4)
        found = await here.window()
        assert here.clock.now_s == T0 + 210
    assert found.rejected == {"out_of_order": 8 * 9}
    assert len(found.devices) == 8
    assert not np.isnan(found.activity[0, -3:]).any()
    assert here.minutes


async def test_a_clock_that_jumps_ahead_makes_a_gap():
    async with bed("h100") as here:
        await here.scrape(8)
        here.clock.now_s += 300
        await here.scrape(8)
        found = await here.window(540)
    assert np.isnan(found.activity[0]).tolist() == [False, False, *[True] * 5, False, False]
    assert len(here.minutes) == 3


async def test_a_frozen_clock_counts_duplicates():
    async with bed("h100") as here:
        await here.scrape(1)
        await here.scrape(1, every_s=0)
        found = await here.window()
    assert found.rejected == {"duplicate": 8}


async def test_finished_minutes_reach_the_sink_once_and_in_order():
    async with bed("h100") as here:
        await here.scrape(20)
        assert [window.start_s for window in here.minutes] == [T0, T0 + 60, T0 + 120, T0 + 180]
        assert all(window.steps == 1 and len(window.devices) == 8 for window in here.minutes)


async def test_a_minute_that_the_sink_refuses_is_offered_again():
    refusals = iter([errors.Transient("the disk is full"), errors.Transient("the disk is full")])

    def refuse(_: UsageWindow) -> None:
        for refusal in refusals:
            raise refusal

    async with bed("h100", sink=refuse) as here:
        await here.scrape(5)
        assert here.source.problem() == "minutes of usage are not stored: the disk is full"
        await here.scrape(15)
        assert [window.start_s for window in here.minutes] == [T0, T0 + 60, T0 + 120, T0 + 180]
        assert here.source.problem() is None


async def test_stored_minutes_fill_the_window_after_a_restart():
    async with bed("h100") as here:
        here.fleet.hold(H100, (0, None), "a")
        await here.scrape(21)
        before = await here.source.read_window(T0 + 240, 240, 60)
        async with httpx2.AsyncClient() as client:
            again = EmbeddedSource(StaticTargets([]), client, now=here.clock)
            for minute in here.minutes:
                again.seed(minute)
            after = await again.read_window(T0 + 240, 240, 60)
    assert after.devices == before.devices
    for name in ("activity", "tensor", "dram", "memory_used_mib", "memory_total_mib", "power_w"):
        np.testing.assert_allclose(getattr(after, name), getattr(before, name), rtol=1e-6)


async def test_devices_without_pod_labels_get_their_holders():
    clock = Clock()
    fleet = MeteredFleet("h100", now=clock)
    uuid = NODES["h100"].gpus[0].uuid
    async with (
        http.serving(fleet.app, http.Address("127.0.0.1", 0)) as port,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        targets = CalledTargets(lambda: [(H100, f"http://127.0.0.1:{port}")])
        source = EmbeddedSource(targets, client, now=clock, holders=lambda: [Holding(H100, uuid, "", A, "main")])
        clock.now_s += 15
        await source.scrape_round()
        found = await source.read_window(clock.now_s, 60, 60)
    assert len(found.devices) == 8
    assert found.devices[row_of(found, A)].key.uuid == uuid


# --- exporters that misbehave ---------------------------------------------------------------------------


async def scrape_app(
    app: Callable[..., object], *, after: Callable[[], None] = lambda: None, **settings: float
) -> EmbeddedSource:
    async with (
        http.serving(app, http.Address("127.0.0.1", 0)) as port,  # type: ignore[arg-type]  # small test apps
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        source = EmbeddedSource(
            StaticTargets([f"http://127.0.0.1:{port}"]),
            client,
            ScrapeSettings(**settings),  # type: ignore[arg-type]  # numbers only
        )
        await source.scrape_round()
        after()
    return source


async def test_an_exporter_that_hangs_costs_its_deadline_only():
    released = asyncio.Event()

    async def hang(_: object) -> Reply:
        await released.wait()
        return Reply(200, b"")

    source = await scrape_app(hang, timeout_s=0.05, after=released.set)
    assert "took longer than 0.05 s" in (source.problem() or "")


async def test_a_body_that_is_too_large_is_a_failed_scrape():
    source = await scrape_app(lambda _: Reply(200, b"x" * 100_000), max_body_bytes=1000)
    assert "sent more than 1000 bytes" in (source.problem() or "")


@contextlib.asynccontextmanager
async def beside(app: Callable[..., object], **settings: float) -> AsyncIterator[tuple[EmbeddedSource, asyncio.Event]]:
    """An exporter that misbehaves, and a good one; with an event that is set when the good one was asked often."""
    asked: list[object] = []
    often = asyncio.Event()

    def good(request: object) -> Reply:
        asked.append(request)
        if len(asked) >= 5:
            often.set()
        return Reply(200, b'DCGM_FI_DEV_FB_USED{UUID="GPU-1",Hostname="n1"} 5\n')

    async with (
        http.serving(app, http.Address("127.0.0.1", 0)) as bad_port,  # type: ignore[arg-type]  # small test apps
        http.serving(good, http.Address("127.0.0.1", 0)) as port,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        urls = [f"http://127.0.0.1:{bad_port}", f"http://127.0.0.1:{port}"]
        yield EmbeddedSource(StaticTargets(urls), client, ScrapeSettings(**settings)), often  # type: ignore[arg-type]


async def test_a_body_about_too_many_devices_concerns_its_exporter_alone():
    lines = "\n".join(f'DCGM_FI_DEV_FB_USED{{UUID="GPU-{number}",Hostname="n2"}} 5' for number in range(5000))
    async with beside(lambda _: Reply(200, lines.encode())) as (source, _):
        await source.scrape_round()
        found = await source.read_window(time.time() + 60, 120, 60)
    assert [device.key.node for device in found.devices] == ["n1"]
    assert list(source.list_failures().values()) == ["has samples of more than 4096 devices"]


async def test_rounds_do_not_wait_for_an_exporter_that_hangs():
    released = asyncio.Event()

    async def hang(_: object) -> Reply:
        await released.wait()
        return Reply(200, b"")

    async with beside(hang, interval_s=0.01, timeout_s=PATIENCE_S) as (source, often):
        running = asyncio.create_task(source.run())
        async with asyncio.timeout(PATIENCE_S):
            await often.wait()
        assert source.list_failures() == {}  # it hangs still
        released.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_body_of_garbage_is_no_data():
    source = await scrape_app(lambda _: Reply(200, b"\xff\x00{}\nDCGM_FI_DEV_FB_USED{} x\n" * 100))
    assert source.problem() == "no exporter has sent a sample yet"


async def test_an_exporter_that_fails_is_asked_less_often():
    asked = 0

    def refuse(_: object) -> Reply:
        nonlocal asked
        asked += 1
        return Reply(500, b"")

    async with (
        http.serving(refuse, http.Address("127.0.0.1", 0)) as port,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        source = EmbeddedSource(StaticTargets([f"http://127.0.0.1:{port}"]), client)
        for _ in range(32):
            await source.scrape_round()
    assert asked == 7


async def test_a_target_list_that_is_broken_keeps_the_known_targets():
    async with bed("h100") as here:
        await here.scrape(1)
        here.source._targets = DiscoveredTargets("http://127.0.0.1:1/targets", here.source._client)
        await here.scrape(5, every_s=60)
        assert here.source.count_targets() == 1
        assert here.source.problem() is None


async def test_a_target_list_that_never_worked_is_a_problem():
    async with httpx2.AsyncClient(trust_env=False) as client:
        source = EmbeddedSource(DiscoveredTargets("http://127.0.0.1:1/targets", client), client)
        await source.scrape_round()
        assert "the target list at http://127.0.0.1:1/targets does not respond" in (source.problem() or "")


async def test_one_bad_address_does_not_hide_the_other_exporters():
    addresses = [("n1", "http://[fd00::1"), ("n2", "http://127.0.0.1:1")]
    assert [target.url for target in await CalledTargets(lambda: addresses).list_targets()] == [
        "http://127.0.0.1:1/metrics"
    ]
    groups = [{"targets": ["[fd00::1", "127.0.0.1:1"]}, {"targets": ["n3:x"], "labels": {"__scheme__": "gopher"}}]
    body = json.dumps(groups).encode()
    async with (
        http.serving(lambda _: Reply(200, body), http.Address("127.0.0.1", 0)) as port,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        listed = await DiscoveredTargets(f"http://127.0.0.1:{port}/targets", client).list_targets()
    assert [target.url for target in listed] == ["http://127.0.0.1:1/metrics"]


@pytest.mark.parametrize("body", [b"", b"[", b"{}", b'[{"targets": 3}]', b"<html>"])
async def test_a_target_list_that_is_none_is_a_problem(body):
    async with (
        http.serving(lambda _: Reply(200, body), http.Address("127.0.0.1", 0)) as port,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        source = EmbeddedSource(DiscoveredTargets(f"http://127.0.0.1:{port}/targets", client), client)
        await source.scrape_round()
        assert "is not in the format of http_sd" in (source.problem() or "")


@pytest.mark.parametrize(
    "url", ["", "n1:9400", "ftp://n1/metrics", "http://", "http:///metrics", "http://[::1", "http://n1:99999"]
)
def test_a_url_that_is_none_is_refused_with_an_example(url):
    with pytest.raises(errors.Permanent, match="write it as http://HOST:9400/metrics"):
        make_target(url)


async def test_pushed_samples_count_only_for_nodes_that_are_not_scraped():
    async with bed("h100") as here:
        here.fleet.hold(H100, (0, None), "a", "constant(util=0.8, mem=0.5, noise=0)")
        await here.scrape(40)
        (row,) = (await here.window()).find_rows(PodKey("team", "a"))
        busy = (await here.window()).devices[row]
        other = replace(busy, key=busy.key._replace(node="unscraped"))
        values = np.full((2, len(Field)), np.nan, dtype=np.float32)
        values[:, Field.ENGINE] = 0.0
        for _ in range(100):
            here.source.push(Scrape((busy, other), values), here.clock())
        found = await here.window()
    rows = {found.devices[each].key.node: each for each in found.find_rows(PodKey("team", "a"))}
    assert found.activity[rows[busy.key.node]] == pytest.approx(np.full(10, 0.8))
    assert found.rejected["refused"] == 100
    assert "unscraped" in rows


async def test_pushed_samples_that_are_older_than_the_buffer_keeps_are_counted_and_skipped():
    async with bed("h100") as here:
        await here.scrape(1)
        device = replace((await here.window()).devices[0], key=DeviceKey("unscraped", "GPU-p", "", None, ""))
        values = np.zeros((1, len(Field)), dtype=np.float32)
        here.source.push(Scrape((device,), values), here.clock() - 7200.0)
        found = await here.window(9000.0)
    assert found.rejected["out_of_order"] == 1
    assert "GPU-p" not in {each.key.uuid for each in found.devices}
