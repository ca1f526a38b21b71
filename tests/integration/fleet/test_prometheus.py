"""`kgwe local prometheus`, as typed: it scrapes the simulated nodes, and its data names the pods that run on them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.clusters.fleet import NODES, run_pod
from tests.support.patience import PATIENCE_S

from kgwe.cli.main import main
from kgwe.local.prometheus import binary, server
from kgwe.metrics.prometheus_api import PrometheusSettings
from kgwe.metrics.settings import SourceSettings, open_source
from kgwe.model.usage.window import PodKey

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.kube.client.client import KubeClient
    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.metrics.source import MetricSource
    from kgwe.model.usage.window import UsageWindow

pytestmark = pytest.mark.cluster


class Commands:
    """Runs `kgwe local prometheus …` on the cluster."""

    def __init__(self, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._cluster = cluster
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str]:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as done:
            main(["local", "prometheus", *arguments, "--name", self._cluster.name])
        printed = self._capsys.readouterr()
        return int(done.value.code or 0), printed.out + printed.err

    async def until_all_respond(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = json.loads(self.run("status", "-o", "json")[1])
                if found["targets_up"] == NODES:
                    return dict(found)
                await asyncio.sleep(0.2)


@pytest.fixture
def commands(
    cluster: LocalCluster,
    cluster_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Commands:
    monkeypatch.setenv("KGWE_STATE_DIR", str(cluster_root))
    return Commands(cluster, capsys)


async def read_until_busy(source: MetricSource, pod: PodKey) -> UsageWindow:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            window = await source.read_window(time.time(), 10, 2)
            if any(window.activity[row, -1] > 0 for row in window.find_rows(pod)):
                return window
            await asyncio.sleep(0.2)


async def test_prometheus_beside_the_cluster_knows_what_pods_do(
    client: KubeClient, commands: Commands, cluster: LocalCluster
) -> None:
    if binary.find_prometheus(2) is None:
        pytest.skip("Prometheus 2.x is not installed (Debian: apt-get install prometheus)")
    assert commands.run("status") == (1, "Prometheus not started.\n")
    assert commands.run("down") == (0, "Prometheus does not run.\n")
    code, said = commands.run("up", "--version-line", "2", "--interval-s", "0.5")
    assert code == 0, said
    url = said.rpartition("PROMETHEUS_URL=")[2].strip()
    try:
        assert commands.run("up", "--version-line", "2")[1] == said  # it already runs
        pod = PodKey("default", await run_pod(client, "h100-0000", 1))
        status = await commands.until_all_respond()
        assert (status["url"], status["problem"], status["targets_down"]) == (url, None, 0)
        assert status["version"].startswith("2.")
        source = open_source(SourceSettings(prometheus=PrometheusSettings(url)))
        window = await read_until_busy(source, pod)
        await source.close()
        (row,) = window.find_rows(pod)
        assert 0 < np.nanmax(window.activity[row]) < 0.81  # it rises to 0.8
        assert window.memory_total_mib[row, -1] == 81559
        assert len({device.key.node for device in window.devices}) == NODES
    finally:
        assert commands.run("down") == (0, "Prometheus is stopped.\n")
    assert server.examine(cluster).problem == "not started"
