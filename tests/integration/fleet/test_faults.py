"""Faults on command: what every component sees of them, how long they last, how they are cleared."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.clusters.fleet import MIXED, NODES, exporting, pods_of, run_pod, until, watching

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.local.fleet import apply, faults

pytestmark = pytest.mark.cluster


async def test_a_node_that_is_down_stays_down_until_cleared(client):
    async with exporting(client) as metrics, watching(client, resources.NODE) as nodes:
        name = await run_pod(client, "h100-0000", 2)
        await faults.node_down(client, "h100-0000")
        node = await until(
            nodes, "h100-0000", lambda node: any(t.key.endswith("unreachable") for t in node.spec.taints)
        )
        assert not apply.is_ready(node)
        assert (await metrics.get("/nodes/h100-0000/metrics")).status_code == 503
        assert "h100-0000" not in {
            s.labels["Hostname"] for s in await metrics.samples("/metrics", "DCGM_FI_DEV_GPU_TEMP")
        }
        # Neither a second apply nor anything kwok does brings it back.
        await apply.apply_fleet(client, MIXED, NODES)
        assert not apply.is_ready(await client.get(resources.NODE, "h100-0000"))
        assert [fault.node for fault in await faults.list_faults(client)] == ["h100-0000"]
        assert await faults.clear(client, "h100-0000") == ["h100-0000"]
        await until(nodes, "h100-0000", lambda node: apply.is_open(node) and not node.spec.taints)
        pod = await client.get(resources.POD, name, "default")
        assert (pod.status.phase, apply.NODE_FAULT_ANNOTATION in pod.metadata.annotations) == ("Running", False)


async def test_an_xid_takes_the_card_out_of_service_until_cleared(client):
    async with exporting(client) as metrics:
        health = await faults.gpu_xid(client, "h100-0001", 0, 79)
        assert (health.state, health.reason) == ("Unhealthy", "FallenOffTheBus")
        obj = await client.get(resources.GPU_NODE, "h100-0001")
        assert (obj.status.healthyGPUs, obj.status.gpus[0].health.lastXID) == (7, 79)
        node = await client.get(resources.NODE, "h100-0001")
        assert (node.status.capacity["nvidia.com/gpu"], node.status.allocatable["nvidia.com/gpu"]) == ("8", "7")
        path = "/nodes/h100-0001/metrics"
        await metrics.until(path, "DCGM_FI_DEV_XID_ERRORS", lambda found: next(s.value for s in found) == 79)
        pod = await run_pod(client, "h100-0001", 1)
        samples = await metrics.until(path, "DCGM_FI_DEV_GPU_UTIL", lambda found: len(pods_of(found)) == 1)
        assert pods_of(samples) == {1: pod}

        outcome = await apply.apply_fleet(client, MIXED, NODES)
        assert outcome.counts[apply.Verdict.UNCHANGED] == NODES
        await faults.clear(client)
        assert (await client.get(resources.NODE, "h100-0001")).status.allocatable["nvidia.com/gpu"] == "8"
        assert (await client.get(resources.GPU_NODE, "h100-0001")).status.healthyGPUs == 8
        await metrics.until(path, "DCGM_FI_DEV_XID_ERRORS", lambda found: {s.value for s in found} == {0})


async def test_an_xid_on_a_cut_card_takes_its_slices_along(client):
    await faults.gpu_xid(client, "a100-mig-0000", 0, 48)
    allocatable = (await client.get(resources.NODE, "a100-mig-0000")).status.allocatable
    assert allocatable["nvidia.com/mig-3g.40gb"] == allocatable["nvidia.com/mig-1g.10gb"] == "7"


async def test_a_link_that_is_down_is_missing_at_both_ends(client):
    nvlink = await faults.link_down(client, "v100-0000", 0, 3)
    assert (nvlink.links, nvlink.maxLinks) == (5, 6)
    obj = await client.get(resources.GPU_NODE, "v100-0000")
    assert {peer.gpu: peer.links for peer in obj.status.gpus[3].nvlink.peers}[0] == 1
    assert (await client.get(resources.NODE, "v100-0000")).status.allocatable["nvidia.com/gpu"] == "8"
    await faults.clear(client, "v100-0000")
    obj = await client.get(resources.GPU_NODE, "v100-0000")
    assert [device.nvlink.links for device in obj.status.gpus] == [6] * 8


async def test_faults_add_up_and_each_is_cleared(client):
    await asyncio.gather(*(faults.gpu_xid(client, "h100-0002", card, 48) for card in range(4)))
    await faults.link_down(client, "h100-0002", 5, links=2)
    obj = await client.get(resources.GPU_NODE, "h100-0002")
    assert (obj.status.healthyGPUs, obj.status.gpus[5].nvlink.links) == (4, 16)
    assert (await client.get(resources.NODE, "h100-0002")).status.allocatable["nvidia.com/gpu"] == "4"
    assert await faults.clear(client) == ["h100-0002"]
    assert await faults.list_faults(client) == []


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (lambda c: faults.gpu_xid(c, "h100-0000", 8, 79), "has GPUs 0 to 7, not 8"),
        (lambda c: faults.gpu_xid(c, "h100-0000", 0, 0), "0 is not a valid XID"),
        (lambda c: faults.link_down(c, "h100-0000", 0, 1), "connected by an NVSwitch"),
        (lambda c: faults.link_down(c, "h100-0000", 0, links=19), "18 links can go down there, not 19"),
        (lambda c: faults.link_down(c, "v100-0000", 0, 7), "has NVLinks to GPUs 1, 2, 3, 4"),
        (lambda c: faults.link_down(c, "l40s-0000", 0), "have no NVLink"),
        (lambda c: faults.spot_notice(c, "h100-0000"), "is not a spot node"),
        (lambda c: faults.node_down(c, "nope"), "no node nope"),
    ],
)
async def test_a_fault_that_cannot_be_is_refused_with_the_reason(client, break_it, why):
    with pytest.raises((errors.Permanent, errors.NotFound), match=why):
        await break_it(client)


async def test_a_spot_notice_announces_a_deadline_and_can_be_cleared(client):
    deadline = await faults.spot_notice(client, "h100-spot-0000", after_s=3600)
    node = await client.get(resources.NODE, "h100-spot-0000")
    assert faults.spot_deadline(node) == deadline.replace(microsecond=0)
    assert [(t.key, t.effect) for t in node.spec.taints] == [(faults.SPOT_TAINT, "NoSchedule")]
    await faults.clear(client)
    node = await client.get(resources.NODE, "h100-spot-0000")
    assert (node.spec.taints, faults.spot_deadline(node)) == ((), None)


async def test_a_spot_node_is_gone_after_its_deadline(client):
    async with (
        exporting(client),
        watching(client, resources.NODE) as nodes,
        watching(client, resources.GPU_NODE) as gpu_nodes,
    ):
        await faults.spot_notice(client, "l40s-spot-0000", after_s=1)
        await until(nodes, "l40s-spot-0000", lambda node: node is None)
        await until(gpu_nodes, "l40s-spot-0000", lambda node: node is None)
