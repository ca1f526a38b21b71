"""Metrics follow the pods that are really bound, and pods follow their use profiles."""

from __future__ import annotations

import itertools
import json

import pytest
from tests.support.clusters.fleet import MIXED, NODES, exporting, pods_of, run_pod, until, watching

from kgwe.kube.api import resources
from kgwe.local.fleet import gpupods
from kgwe.model.simfleet import inventory

pytestmark = pytest.mark.cluster


async def test_metrics_cover_every_card_and_slice_of_every_node(client):
    nodes = inventory.expand_fleet(MIXED, NODES)
    rows = sum(max(len(card.instances), 1) for node in nodes for card in node.gpus)
    async with exporting(client) as metrics:
        samples = await metrics.samples("/metrics", "DCGM_FI_DEV_GPU_TEMP")
        assert len(samples) == rows
        assert {s.labels["Hostname"] for s in samples} == {node.name for node in nodes}
        targets = (await metrics.get("/targets")).json()
        assert {t["labels"]["__metrics_path__"] for t in targets} == {f"/nodes/{n.name}/metrics" for n in nodes}


async def test_the_cards_of_a_bound_pod_show_its_use_and_its_name(client):
    async with exporting(client) as metrics:
        name = await run_pod(client, "h100-0000", 2)
        path = "/nodes/h100-0000/metrics"
        samples = await metrics.until(path, "DCGM_FI_DEV_FB_USED", lambda found: len(pods_of(found)) == 2)
        assert pods_of(samples) == {0: name, 1: name}
        assert (samples[0].labels["namespace"], samples[0].labels["container"]) == ("default", "main")
        await client.delete(gpupods.GPU_PODS, name, "default", grace_s=0)
        await metrics.until(path, "DCGM_FI_DEV_FB_USED", lambda found: not pods_of(found))


async def test_a_slice_shows_its_activity_while_utilization_reads_zero(client):
    async with exporting(client) as metrics:
        name = await run_pod(client, "a100-mig-0000", resource="nvidia.com/mig-2g.20gb")
        path = "/metrics/a100-mig-0000"
        active = await metrics.until(
            path, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", lambda found: any(s.value > 0 for s in found)
        )
        busy = [s for s in active if s.value > 0]
        assert [(s.labels["pod"], s.labels["GPU_I_PROFILE"], s.labels["GPU_I_ID"]) for s in busy] == [
            (name, "2g.20gb", "5")
        ]
        assert {s.value for s in await metrics.samples(path, "DCGM_FI_DEV_GPU_UTIL")} == {0}


async def test_pods_keep_their_cards_when_the_exporter_restarts(client, tmp_path):
    memory = tmp_path / "cards.json"
    path = "/nodes/h100-0001/metrics"
    async with exporting(client, memory) as metrics:
        first = await run_pod(client, "h100-0001", 3)
        await metrics.until(path, "DCGM_FI_DEV_GPU_UTIL", lambda found: len(pods_of(found)) == 3)
        second = await run_pod(client, "h100-0001", 1)
        await metrics.until(path, "DCGM_FI_DEV_GPU_UTIL", lambda found: len(pods_of(found)) == 4)
        await client.delete(gpupods.GPU_PODS, first, "default", grace_s=0)
        before = await metrics.until(path, "DCGM_FI_DEV_GPU_UTIL", lambda found: len(pods_of(found)) == 1)
        assert pods_of(before) == {3: second}
    async with exporting(client, memory) as metrics:
        assert pods_of(await metrics.samples(path, "DCGM_FI_DEV_GPU_UTIL")) == {3: second}


async def test_energy_never_falls(client):
    async with exporting(client) as metrics:
        name = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total"  # the parser appends _total
        readings = [await metrics.samples("/nodes/h100-0000/metrics", name) for _ in range(5)]
        for before, after in itertools.pairwise(readings):
            assert all(b.value <= a.value for b, a in zip(before, after, strict=True))


async def test_an_unknown_node_is_not_found(client):
    async with exporting(client) as metrics:
        assert (await metrics.get("/nodes/nope/metrics")).status_code == 404
        assert (await metrics.get("/nope")).status_code == 404
        assert (await metrics.get("/healthz")).status_code == 200


async def test_a_pod_whose_profile_says_so_runs_out_of_memory(client):
    async with exporting(client), watching(client, resources.POD) as watch:
        name = await run_pod(client, "l40s-0000", profile="oom-after(1s)")
        pod = await until(watch, f"default/{name}", lambda pod: pod is not None and pod.status.phase == "Failed")
        assert pod.status.reason == "OOMKilled"
    raw = json.loads(await client.request("GET", f"/api/v1/namespaces/default/pods/{name}"))
    ended = raw["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


async def test_a_pod_that_may_restart_runs_out_of_memory_again_and_again(client):
    async with exporting(client), watching(client, gpupods.GPU_PODS) as watch:
        name = await run_pod(client, "l40s-0000", restart="Always", profile="oom-after(1s)")
        key = f"default/{name}"
        pod = await until(
            watch,
            key,
            lambda pod: pod is not None and any(each.restart_count > 1 for each in pod.status.container_statuses),
        )
        assert pod.status.phase == "Running"
