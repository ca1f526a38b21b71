"""The same simulated fleet, scraped by KGWE and by a real Prometheus, gives the same facts in both label dialects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx2
import numpy as np
import pytest
from tests.support.clusters import prometheus as real
from tests.support.fakes.metered_fleet import NODES, MeteredFleet
from tests.support.patience import PATIENCE_S

from kgwe.local.prometheus import binary
from kgwe.metrics.embedded import EmbeddedSource, ScrapeSettings, scraping
from kgwe.metrics.prometheus import PrometheusSource
from kgwe.metrics.prometheus_api import PrometheusSettings
from kgwe.metrics.targets import DiscoveredTargets
from kgwe.model.usage.window import QUANTITIES, PodKey
from kgwe.telemetry import http
from kgwe.telemetry.http import JSON, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kgwe.local.fleet import exporter
    from kgwe.metrics.source import MetricSource
    from kgwe.model.usage.window import DeviceKey, UsageWindow
    from kgwe.telemetry.http import Request

WHOLE, MIG, GONE = NODES["h100"].name, NODES["a100-mig"].name, NODES["l40s"].name
# Prometheus adds the labels of the target; labels of the exporter with the same names become exported_….
TARGET = {"pod": "dcgm-exporter-x7k2p", "namespace": "gpu-operator", "container": "exporter"}
JOBS = {"plain": {}, "renamed": TARGET}
INTERVAL_S = 0.25
# What KGWE's agent serves for a GPU that two pods use, and for a slice.
CARD = 'gpu_uuid="GPU-agent",node="agent-node",model="NVIDIA L4"'
SLICED = 'gpu_uuid="GPU-cut",node="agent-node",model="NVIDIA A30"'
AGENT = f"""kgwe_gpu_utilization_percent{{{CARD}}} 60
kgwe_gpu_tensor_active_percent{{{CARD}}} 25
kgwe_gpu_memory_used_bytes{{{CARD}}} 2147483648
kgwe_gpu_memory_total_bytes{{{CARD}}} 25769803776
kgwe_gpu_power_watts{{{CARD}}} 60.5
kgwe_gpu_pod_share_percent{{{CARD},namespace="team",pod="agent-1"}} 40
kgwe_gpu_pod_share_percent{{{CARD},namespace="team",pod="agent-2"}} 20
kgwe_gpu_pod_memory_bytes{{{CARD},namespace="team",pod="agent-1"}} 1073741824
kgwe_gpu_power_watts{{{SLICED}}} 100
kgwe_mig_instance_utilization_percent{{{SLICED},profile="1g.6gb",mig_uuid="MIG-1",gpu_instance_id="3"}} 30
kgwe_mig_instance_memory_used_bytes{{{SLICED},profile="1g.6gb",mig_uuid="MIG-1",gpu_instance_id="3"}} 1073741824
"""
STEP_S = 1.0


def add_agent(app: exporter.ExporterApp) -> Callable[[Request], Reply]:
    """The exporter of the fleet, and an agent as one more target."""

    def respond(request: Request) -> Reply:
        if request.path == "/agent/metrics":
            return Reply(200, AGENT.encode())
        reply = app(request)
        if request.path == "/targets":
            labels = {"__metrics_path__": "/agent/metrics", "instance": "agent-node:9400"}
            more = {"targets": [request.header(b"host")], "labels": labels}
            return Reply(200, json.dumps([*json.loads(reply.body), more]).encode(), JSON)
        return reply

    return respond


@dataclass
class Bed:
    fleet: MeteredFleet
    embedded: EmbeddedSource
    sources: dict[str, PrometheusSource]

    async def windows(self, end_s: float, length_s: float) -> dict[str, UsageWindow]:
        every: dict[str, MetricSource] = {"embedded": self.embedded, **self.sources}
        return {name: await source.read_window(end_s, length_s, STEP_S) for name, source in every.items()}

    async def until(self, pod: PodKey, known: bool, since_s: float) -> float:  # noqa: FBT001 - reads as a sentence
        """The end of a step in which all sources know what the pod did, or none does, for three steps."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                end_s = float(int(time.time()) - 1)
                found = await self.windows(end_s, 3 * STEP_S)
                states = [_is_known(window, pod) for window in found.values()]
                if end_s - 3 >= since_s and all(state == known for state in states):
                    return end_s
                await asyncio.sleep(INTERVAL_S)


def _is_known(window: UsageWindow, pod: PodKey) -> bool | None:
    """Whether all steps of all devices are known, with this pod's; None if some are not."""
    if not window.find_rows(pod):
        return False
    return None if _has_gap(window) else True


def _has_gap(window: UsageWindow) -> bool:
    """Whether a device is known in some steps only."""
    known = ~np.isnan(np.stack([getattr(window, name) for name in QUANTITIES])).all(axis=0)
    return bool((known.any(axis=1) & ~known.all(axis=1)).any())


@contextlib.asynccontextmanager
async def bed(program: Path, folder: Path) -> AsyncIterator[Bed]:
    fleet = MeteredFleet("h100", "a100-mig", "l40s", now=time.time)
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(http.serving(add_agent(fleet.app), http.Address("127.0.0.1", 0)))
        targets = f"http://127.0.0.1:{port}/targets"
        url = await stack.enter_async_context(real.running(program, folder, targets, JOBS, interval_s=INTERVAL_S))
        client = httpx2.AsyncClient(trust_env=False)
        settings = ScrapeSettings(interval_s=INTERVAL_S)
        embedded = EmbeddedSource(DiscoveredTargets(targets, client), client, settings)
        await stack.enter_async_context(scraping(embedded))
        sources = {}
        for job in JOBS:
            sources[job] = PrometheusSource(PrometheusSettings(url, matchers=f'job="{job}"'))
            stack.push_async_callback(sources[job].close)
        yield Bed(fleet, embedded, sources)


def facts(window: UsageWindow) -> dict[DeviceKey, tuple[int, str, str, dict[str, list[float]]]]:
    """What a window says: by device its sharers, profile, model and values."""
    return {
        device.key: (
            device.sharers,
            device.mig_profile,
            device.model,
            {name: getattr(window, name)[row].tolist() for name in QUANTITIES},
        )
        for row, device in enumerate(window.devices)
    }


def assert_same_facts(one: UsageWindow, other: UsageWindow) -> None:
    ours, theirs = facts(one), facts(other)
    assert ours.keys() == theirs.keys()
    for key, (sharers, profile, model, values) in ours.items():
        assert (sharers, profile, model) == theirs[key][:3], key
        for name, row in values.items():
            np.testing.assert_allclose(row, theirs[key][3][name], rtol=1e-3, atol=1e-3, err_msg=f"{key} {name}")


async def check(program: Path, folder: Path) -> None:
    async with bed(program, folder) as here:
        fleet = here.fleet
        fleet.hold(WHOLE, (0, None), "whole", "constant(util=0.8, mem=0.5, noise=0)")
        fleet.hold(WHOLE, (1, None), "idle", "idle(mem=0.4)")
        fleet.hold(WHOLE, (2, -1), "sharer-1", "constant(util=0.2, mem=0.1, noise=0)")
        fleet.hold(WHOLE, (2, -2), "sharer-2", "constant(util=0.3, mem=0.1, noise=0)")
        fleet.hold(MIG, (0, 5), "slice", "constant(util=0.6, mem=0.5, noise=0)")
        fleet.hold(GONE, (0, None), "gone", "constant(util=0.9, mem=0.5, noise=0)")
        gone = PodKey("team", "gone")
        settled_s = await here.until(gone, known=True, since_s=time.time())
        found = await here.windows(settled_s, 3 * STEP_S)
        for name in JOBS:
            assert_same_facts(found["embedded"], found[name])
        window = found["renamed"]
        rows = {device.key.pod.name: row for row, device in enumerate(window.devices) if device.key.pod}
        pods = {"whole", "idle", "sharer-1", "sharer-2", "slice", "gone", "agent-1", "agent-2"}
        assert set(rows) == pods
        assert window.activity[rows["whole"]] == pytest.approx(np.full(3, 0.8), abs=1e-3)
        assert window.activity[rows["idle"]] == pytest.approx(np.zeros(3))
        assert window.activity[rows["slice"]] == pytest.approx(np.full(3, 0.6), abs=1e-3)
        assert window.devices[rows["slice"]].mig_profile == "2g.20gb"
        assert window.devices[rows["sharer-1"]].sharers == 2
        assert window.memory_total_mib[rows["whole"], 0] == 81559
        agent = rows["agent-1"]
        assert window.activity[agent] == pytest.approx(np.full(3, 0.4), abs=1e-3)
        assert (window.memory_used_mib[agent, 0], window.memory_total_mib[agent, 0]) == (1024, 24576)
        assert (window.power_w[agent, 0], window.devices[agent].sharers) == (60.5, 2)
        assert here.embedded.problem() is None
        assert [source.problem() for source in here.sources.values()] == [None, None]

        fleet.down.add(GONE)
        gap_s = await here.until(gone, known=False, since_s=time.time())
        for window in (await here.windows(gap_s, 3 * STEP_S)).values():
            assert GONE not in {device.key.node for device in window.devices}
            assert WHOLE in {device.key.node for device in window.devices}
        fleet.down.clear()
        back_s = await here.until(gone, known=True, since_s=time.time())
        for window in (await here.windows(back_s, back_s - settled_s + 3 * STEP_S)).values():
            (row,) = window.find_rows(gone)
            activity = window.activity[row]
            assert np.isnan(activity).any()
            assert activity[~np.isnan(activity)] == pytest.approx(0.9, abs=1e-3)  # a gap is unknown, never zero


async def test_prometheus_of_the_distribution_gives_the_facts_of_the_embedded_source(tmp_path):
    found = binary.find_prometheus(2)
    if found is None:
        pytest.skip("Prometheus 2.x is not installed (Debian: apt-get install prometheus)")
    await check(found.path, tmp_path)


@pytest.mark.slow
async def test_prometheus_3_gives_the_facts_of_the_embedded_source(tmp_path):
    found = await asyncio.to_thread(binary.ensure_prometheus, 3)
    await check(found.path, tmp_path)
