"""The metric source that settings ask for, and minutes of a source that does not announce them."""

from __future__ import annotations

import pytest
from tests.support.builders.usage import NOON_S, device
from tests.support.fakes.memory_api import MemoryApi

from kgwe import errors
from kgwe.apps.optimizer.cluster_view import ClusterView
from kgwe.apps.optimizer.history.runs import RunTracker
from kgwe.apps.optimizer.settings import Settings
from kgwe.apps.optimizer.sources import MinutePoller, make_source
from kgwe.kube.client.client import KubeClient
from kgwe.metrics.embedded import EmbeddedSource
from kgwe.metrics.prometheus import PrometheusSource
from kgwe.model.usage.window import UsageWindow, make_window


class Source:
    """A source that has every minute."""

    def __init__(self) -> None:
        self.fails = False
        self.is_empty = False

    async def read_window(self, end_s: float, length_s: float, step_s: float) -> UsageWindow:
        if self.fails:
            raise errors.Transient("Prometheus is down")
        devices = () if self.is_empty else (device(),)
        return make_window(end_s - length_s, step_s, round(length_s / step_s), devices)

    def problem(self) -> str | None:
        return None

    async def close(self) -> None:
        pass


class Bed:
    def __init__(self) -> None:
        self.source = Source()
        self.minutes: list[float] = []
        self.poller = MinutePoller(self.source, self._take)

    async def _take(self, window: UsageWindow) -> None:
        self.minutes += [window.start_s + window.step_s * step for step in range(window.activity.shape[1])]

    async def poll(self, *after_s: float) -> list[float]:
        """Poll so many seconds after noon; return the minutes since noon that were passed on."""
        for each in after_s:
            await self.poller.poll(NOON_S + each)
        return [(each - NOON_S) / 60 for each in self.minutes]


async def test_the_last_finished_minute_is_read_first():
    assert await Bed().poll(95) == [0]


async def test_each_minute_is_passed_on_once():
    assert await Bed().poll(95, 100, 150, 155, 210) == [0, 1, 2]


async def test_a_minute_is_not_finished_before_prometheus_has_its_samples():
    assert await Bed().poll(95, 145) == [0]


async def test_missed_minutes_are_read_later_but_at_most_half_an_hour():
    bed = Bed()
    await bed.poll(95)
    bed.source.fails = True
    with pytest.raises(errors.Transient):
        await bed.poll(155)
    bed.source.fails = False
    assert await bed.poll(275) == [0, 1, 2, 3]
    assert len(await bed.poll(275 + 7200)) == 4 + 30


async def test_a_clock_that_is_set_back_goes_on_from_there():
    bed = Bed()
    await bed.poll(3695)
    assert len(await bed.poll(95)) == 1
    assert await bed.poll(155, 215) == [60, 1, 2]


async def test_a_minute_without_devices_is_not_stored():
    bed = Bed()
    bed.source.is_empty = True
    assert await bed.poll(95) == []


@pytest.mark.parametrize(
    ("settings", "kind"),
    [(Settings(), EmbeddedSource), (Settings(prometheus_url="http://127.0.0.1:9090"), PrometheusSource)],
)
async def test_usage_comes_from_prometheus_where_its_url_is_set(settings: Settings, kind: type):
    async def ignore(_: UsageWindow) -> None:
        pass

    cluster = ClusterView(KubeClient(MemoryApi()), RunTracker())
    source = make_source(settings, cluster, ignore)
    assert isinstance(source, kind)
    await source.close()
