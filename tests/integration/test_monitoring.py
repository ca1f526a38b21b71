"""Every query of every panel and rule, on a real Prometheus that scrapes the running system, in both label dialects."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.kube.client import manifests
from kgwe.kube.client.client import KubeClient
from kgwe.local.cluster.cluster import ClusterOptions, LocalCluster
from kgwe.local.demo import demo
from kgwe.local.fleet import agents, exporter, models
from kgwe.local.host import ports
from kgwe.local.host.progress import Silent
from kgwe.local.prometheus import binary, server
from kgwe.model.simfleet import inventory
from kgwe.monitoring.dashboards.catalogue import DASHBOARDS
from kgwe.monitoring.rules import catalogue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

pytestmark = [pytest.mark.cluster, pytest.mark.soak]

ROOT = Path(__file__).parents[2]
NODES = 64
INTERVAL_S = 2
# Panels show a range: what was there for a while, such as a node that was bought and returned, is data.
LOOK_BACK_S = 600
# Target labels that make Prometheus rename the labels of metrics.
TARGET = {"namespace": "kgwe-system", "pod": "kgwe-0", "container": "kgwe", "node": "worker-0"}
DIALECTS: dict[str, dict[str, str]] = {"plain": {}, "renamed": TARGET}
# Series that exist only after an event, or with a feature that this system does not use.
EVENTS = {
    "kgwe_gpu_cost_prices_fetched_timestamp_seconds": "live price lists of clouds are not configured",
    "kgwe_notifications_total": "no channel is configured",
    "kgwe_mps_daemon_up": "MPS is not enabled",
    "kgwe_budget_without_effect": "all budgets count",
    "kgwe_forged_decisions_total": "no decision was forged",
    "gpu_autoscaler_launch_errors_total": "no launch failed",
    "gpu_autoscaler_cloud_timeouts_total": "the cloud answered",
    "kgwe_gpu_throttled": "no GPU is slowed down",
    "kgwe_extender_requests_total": "calls with errors",
    "kgwe_mig_cards": "GPUs whose layout failed",
}
_SELECTOR = re.compile(r"\b((?:kgwe[:_]|gpu_autoscaler_|topology_|warp_|controller_|DCGM_)[a-zA-Z_]+(?::\w+)*)")


@dataclass(frozen=True)
class Asked:
    """A query and the labels that its legend names."""

    name: str
    expr: str
    labels: frozenset[str] = frozenset()


def list_queries() -> Iterator[Asked]:
    for dashboard in DASHBOARDS.values():
        for panel in dashboard.list_panels():
            for number, query in enumerate(panel.queries):
                labels = frozenset(re.findall(r"\{\{(\w+)\}\}", query.legend))
                expr = re.sub(r"\$__rate_interval|\$__range", "30s", query.expr)
                expr = re.sub(r"\$(?:namespace|pod|node|level)\b", ".*", expr)
                yield Asked(f"{dashboard.title} / {panel.title} {number}", expr, labels)
        for variable in dashboard.variables:
            metric = variable.metric.replace("$namespace", ".*")
            yield Asked(f"{dashboard.title} / variable {variable.name}", metric, frozenset({variable.label}))
    for recording in catalogue.list_recordings():
        yield Asked(recording.record, recording.expr)
    for alert in catalogue.list_alerts():
        for metric in sorted(set(_SELECTOR.findall(alert.expr)) - EVENTS.keys()):
            yield Asked(f"{alert.name} reads {metric}", metric)


def find_addresses(cluster: LocalCluster) -> dict[str, str]:
    """Return the metrics address of each process of KGWE."""
    found = {}
    for name, record in cluster.state().sidecars.items():
        if "--metrics-bind-address" in record.argv:
            found[name] = record.argv[record.argv.index("--metrics-bind-address") + 1]
    return found


@contextlib.asynccontextmanager
async def prometheus(
    program: Path, folder: Path, processes: dict[str, str], targets: str, labels: dict[str, str]
) -> AsyncIterator[str]:
    await asyncio.to_thread(folder.mkdir)
    jobs: list[dict[str, Any]] = [
        {"job_name": name, "static_configs": [{"targets": [address], "labels": labels}]}
        for name, address in processes.items()
    ]
    relabel = [{"target_label": name, "replacement": value} for name, value in labels.items()]
    jobs.append({"job_name": "dcgm", "http_sd_configs": [{"url": targets}], "relabel_configs": relabel})
    every = f"{INTERVAL_S}s"
    content = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(path) for path in sorted((ROOT / "charts/kgwe/rules").glob("*.yaml"))],
        "scrape_configs": jobs,
    }
    configuration = folder / "prometheus.yml"
    configuration.write_text(yaml.safe_dump(content))
    listen = f"{ports.LOOPBACK}:{ports.allocate(('prometheus',))['prometheus']}"
    with (folder / "log").open("wb") as log:
        command = server.make_command(program, configuration, folder / "data", listen)
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        await asyncio.to_thread(server.await_ready, f"http://{listen}")
        yield f"http://{listen}"
    finally:
        process.terminate()
        await process.wait()


async def ask(client: httpx2.AsyncClient, asked: Asked) -> str:
    """Return what is wrong with the answer; empty if it has series with the labels, at any time of the test."""
    now_s = time.time()
    times = {"start": f"{now_s - LOOK_BACK_S:.0f}", "end": f"{now_s:.0f}", "step": f"{2 * INTERVAL_S}s"}
    reply = (await client.post("/api/v1/query_range", data={"query": asked.expr, **times})).json()
    if reply["status"] != "success":
        return f"{asked.name}: {reply['error']}: {asked.expr}"
    found = reply["data"]["result"]
    if not found:
        return f"{asked.name}: no data: {asked.expr}"
    if asked.labels:
        missing = asked.labels - set().union(*(series["metric"] for series in found))
        if missing:
            return f"{asked.name}: no label {', '.join(sorted(missing))}: {asked.expr}"
    return ""


async def find_wrong(url: str, left: list[Asked]) -> list[tuple[Asked, str]]:
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
        answers = [(each, await ask(client, each)) for each in left]
    return [(each, problem) for each, problem in answers if problem]


async def wait_targets(urls: Iterable[str], count: int) -> None:
    """Wait until each Prometheus has scraped all processes of KGWE twice: from then on it sees counters grow."""
    scraped = Asked("targets", f'count(count_over_time(up{{job=~"kgwe.*"}}[1m]) > 1 and up == 1) >= {count}')
    async with asyncio.timeout(PATIENCE_S):
        for url in urls:
            while await find_wrong(url, [scraped]):  # noqa: ASYNC110 - another process
                await asyncio.sleep(INTERVAL_S)


async def apply_more(client: KubeClient) -> None:
    """Workloads and objects that the samples of the demo lack: MIG slices, a strategy for them, and a share."""
    pod = {"spec": {"containers": [{"name": "main", "image": "example.com/server:1"}]}}
    slices = {
        "apiVersion": "kgwe.nvidia.io/v1", "kind": "GPUWorkload", "metadata": {"name": "slices"},
        "spec": {"gpuRequirements": {"mig": {"profile": "2g.20gb", "count": 1}}, "workloadType": "Inference",
                 "podTemplate": pod},
    }  # fmt: skip
    strategy = {
        "apiVersion": "kgwe.nvidia.io/v1", "kind": "MIGStrategy", "metadata": {"name": "all"},
        "spec": {"gpuSelector": {"model": "A100"}, "profileDistribution": {"1g.10gb": 1.0}},
    }  # fmt: skip
    await manifests.apply_manifest(client, [slices, strategy], namespace=demo.NAMESPACE)


def start_webhook(cluster: LocalCluster) -> None:
    address = ports.allocate(("webhook", "metrics"))
    command = [sys.executable, "-m", "kgwe.cli", "webhook", "--kubeconfig", str(cluster.kubeconfig)]
    command += ["--bind-address", f"{ports.LOOPBACK}:{address['webhook']}"]
    command += ["--cert-dir", str(cluster.directory / "webhook")]
    command += ["--metrics-bind-address", f"{ports.LOOPBACK}:{address['metrics']}"]
    cluster.start_sidecar("kgwe-webhook", command)


@contextlib.asynccontextmanager
async def running_system(root: Path, folder: Path) -> AsyncIterator[tuple[KubeClient, dict[str, str], str]]:
    """The demo's processes, the webhook and one agent; yield their addresses and the list of exporters.

    Workloads are submitted when Prometheus runs: a counter that never grows again says nothing to it.
    """
    name = f"test-{os.getpid()}-monitoring"
    cluster = await asyncio.to_thread(LocalCluster.start, ClusterOptions(name, state_root=root))
    try:
        async with KubeClient.connect(cluster.kubeconfig) as client:
            await demo.prepare(cluster, client, "mixed", NODES, Silent())
            await agents.install(client)
            await asyncio.to_thread(start_webhook, cluster)
            node = next(each for each in inventory.expand_fleet(models.load("mixed"), NODES) if "a100" in each.name)
            with agents.AgentMachine(node, folder / "machine") as machine:
                kubeconfig = await asyncio.to_thread(agents.write_kubeconfig, cluster)
                await asyncio.to_thread(machine.start, kubeconfig)
                addresses = find_addresses(cluster) | {"kgwe-agent": machine.metrics_address}
                yield client, addresses, f"{await asyncio.to_thread(exporter.start, cluster)}/targets"
    finally:
        await asyncio.to_thread(cluster.stop)


async def test_every_query_of_every_panel_and_rule_has_data_in_both_dialects(
    cluster_root: Path, tmp_path: Path
) -> None:
    found = binary.find_prometheus()
    if found is None:
        pytest.skip("no Prometheus on this machine; `kgwe local prometheus up` builds it")
    queries = list(list_queries())
    async with (
        running_system(cluster_root, tmp_path) as (client, addresses, targets),
        contextlib.AsyncExitStack() as stack,
    ):
        urls = {
            name: await stack.enter_async_context(prometheus(found.path, tmp_path / name, addresses, targets, labels))
            for name, labels in DIALECTS.items()
        }
        await wait_targets(urls.values(), len(addresses))
        await demo.submit_samples(client)
        await apply_more(client)
        left = {name: [(each, "") for each in queries] for name in urls}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * PATIENCE_S):
                while any(left.values()):
                    for name, url in urls.items():
                        with contextlib.suppress(httpx2.HTTPError, errors.Transient):
                            left[name] = await find_wrong(url, [each for each, _ in left[name]])
                    await asyncio.sleep(INTERVAL_S)
    problems = [f"{name}: {problem}" for name, wrong in left.items() for _, problem in wrong]
    assert not problems, "\n".join(problems)
