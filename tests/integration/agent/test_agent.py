"""A real agent on simulated hardware and a real API server: it publishes what is so, when it changes, and no more."""

from __future__ import annotations

import asyncio
import datetime as dt
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.support.clusters import clients
from tests.support.clusters.agents import QUICK, AgentBed
from tests.support.machines.naming import named_alike
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.agentapi.client import Access, AgentClient
from kgwe.apps.discovery import fleet as discovery
from kgwe.apps.discovery.freshness import Freshness, judge
from kgwe.kube.api import resources
from kgwe.kube.client import manifests
from kgwe.local.cluster import components, kubeconfig
from kgwe.local.fleet import gpunodes
from kgwe.local.host import assets

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.kube.client.client import KubeClient
    from kgwe.local.fleet.agents import AgentMachine

pytestmark = pytest.mark.cluster

PATIENT = Access(deadline_s=PATIENCE_S)
HEARTBEATS = {**QUICK, "heartbeat_interval_seconds": "1"}


def condition(node, kind):
    return next((each for each in node.status.conditions if each.type == kind), None)


def is_ready(node) -> bool:
    ready = condition(node, "DriverReady")
    return ready is not None and ready.status == "True" and node.status.healthyGPUs == len(node.status.gpus)


def links(node: GPUNode, card: int) -> tuple[int, int]:
    """(up, wired)."""
    nvlink = node.status.gpus[card].nvlink
    return (nvlink.links, nvlink.maxLinks) if nvlink else (0, 0)


async def published(bed: AgentBed, machine: AgentMachine, **settings: str):
    """The machine's GPUNode, once its agent has written it."""
    before = (await bed.get(machine)).metadata.resourceVersion
    machine.start(bed.kubeconfig, **(QUICK | settings))
    return await bed.until(machine, lambda node: node.metadata.resourceVersion != before and is_ready(node))


async def test_an_agent_publishes_the_machine_and_owns_no_more_than_it_knows(bed: AgentBed):
    machine = bed.machine("a100-mig")
    was = await bed.get(machine)
    node = await published(bed, machine)
    assert node.spec.source == "Agent"
    assert node.metadata.labels == was.metadata.labels, "labels of others stay"
    built = msgspec.structs.replace(gpunodes.build_status(machine.node), heartbeatTime=None, conditions=())
    # What has a time or a machine of its own in it.
    said = msgspec.structs.replace(node.status, heartbeatTime=None, conditions=(), bootID="", gpus=())
    assert named_alike(said) == named_alike(msgspec.structs.replace(built, gpus=()))
    healthy = built.gpus[0].health
    cards = tuple(msgspec.structs.replace(each, health=healthy) for each in node.status.gpus)
    assert named_alike(msgspec.structs.replace(said, gpus=cards)) == named_alike(built)
    owner = node.metadata.ownerReferences[0]
    assert (owner.kind, owner.uid) == ("Node", (await bed.client.get(resources.NODE, machine.node.name)).metadata.uid)
    assert judge(node, dt.datetime.now(dt.UTC)).freshness is Freshness.FRESH
    async with AgentClient(machine.address, PATIENT) as client:
        assert (await client.ping()).driver_ready
    listed = await _kgwe("agent", "list", "--kubeconfig", str(bed.cluster.kubeconfig), "-o", "json")
    (row,) = [each for each in msgspec.json.decode(listed) if each["name"] == machine.node.name]
    assert (row["freshness"], row["good"], row["gpus"], row["healthy"]) == ("Fresh", True, 8, 8)
    assert machine.stop() == 0


async def test_while_nothing_changes_nothing_is_written_but_the_heartbeat(bed: AgentBed):
    machine = bed.machine("h100")
    node = await published(bed, machine)
    for _ in range(15):
        await asyncio.sleep(0.1)
        assert (await bed.get(machine)).metadata.resourceVersion == node.metadata.resourceVersion
    # A restarted agent finds everything as it is, and has nothing to say.
    assert machine.stop() == 0
    machine.start(bed.kubeconfig, **QUICK)
    async with AgentClient(machine.address, PATIENT) as client:
        await _answers(client)
        await asyncio.sleep(1.5)
        assert (await client.ping()).problems == []
    assert (await bed.get(machine)).metadata.resourceVersion == node.metadata.resourceVersion
    machine.stop()
    machine.start(bed.kubeconfig, **HEARTBEATS)
    beaten = await bed.until(machine, lambda seen: seen.status.heartbeatTime != node.status.heartbeatTime)
    assert beaten.status.gpus == node.status.gpus


async def test_a_link_that_goes_down_shows_at_once_and_when_it_is_back(bed: AgentBed):
    machine = bed.machine("v100")
    await published(bed, machine)
    machine.hardware.set_link(0, 0, up=0)
    await bed.until(machine, lambda node: links(node, 0) == (5, 6))
    machine.hardware.set_link(0, 0, up=1)
    await bed.until(machine, lambda node: links(node, 0) == (6, 6))


async def test_the_api_server_may_go_and_come_back(bed: AgentBed):
    machine = bed.machine("h100", 1)
    await published(bed, machine)
    bed.cluster.kill(components.APISERVER)
    machine.hardware.set_link(2, 0, up=0)
    async with AgentClient(machine.address, PATIENT) as client:
        await _until_links(client, 17)
        assert (await client.ping()).driver_ready, "the agent lives without an API server"
    await asyncio.to_thread(bed.cluster.restart, components.APISERVER)
    node = await bed.until(machine, lambda node: links(node, 2) == (17, 18))
    assert machine.is_running()
    assert node.status.gpuCount == 8


async def test_a_driver_that_is_missing_or_hangs_is_said_and_waited_for(bed: AgentBed):
    machine = bed.machine("l40s")
    library = machine.hardware.library
    away = library.with_suffix(".away")
    library.rename(away)
    machine.start(bed.kubeconfig, **QUICK)
    node = await bed.until(machine, lambda node: condition(node, "DriverReady") is not None)
    ready = condition(node, "DriverReady")
    assert (ready.status, ready.reason) == ("False", "NoLibrary")
    assert [each.health.state for each in node.status.gpus] == ["Unknown"] * len(node.status.gpus)
    assert node.status.gpuCount == 8, "what the fleet said before is not forgotten"
    seen = judge(node, dt.datetime.now(dt.UTC))
    assert (seen.freshness, seen.is_good) == (Freshness.NO_DRIVER, False)
    away.rename(library)
    node = await bed.until(machine, is_ready)
    assert node.status.healthyGPUs == 8


async def test_an_agent_is_killed_and_its_gpunode_deleted_and_nothing_is_lost(bed: AgentBed):
    machine = bed.machine("h100-spot")
    node = await published(bed, machine)
    machine.kill()
    rows = await discovery.rows(bed.client, dt.datetime.now(dt.UTC) + dt.timedelta(hours=1), 900.0)
    stale = next(row for row in rows if row.name == machine.node.name)
    assert (stale.freshness, stale.is_good) == ("Stale", False)
    await bed.client.delete(resources.GPU_NODE, machine.node.name)
    machine.start(bed.kubeconfig, **QUICK)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                again = await bed.get(machine)
            except errors.NotFound:
                await asyncio.sleep(0.1)
                continue
            if again.status.gpuCount:
                break
            await asyncio.sleep(0.05)
    assert again.metadata.uid != node.metadata.uid
    assert [each.nvlink for each in again.status.gpus] == [each.nvlink for each in node.status.gpus]
    # And while the agent lives.
    await bed.client.delete(resources.GPU_NODE, machine.node.name)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                third = await bed.get(machine)
            except errors.NotFound:
                await asyncio.sleep(0.05)
                continue
            if third.metadata.uid != again.metadata.uid and third.status.gpuCount:
                break
            await asyncio.sleep(0.05)


async def test_an_agent_may_only_write_of_its_own_node(bed: AgentBed, tmp_path: Path):
    token = await _token_of_a_pod(bed, "h100-0000")
    limited = kubeconfig.write_kubeconfig(
        tmp_path / "agent.kubeconfig",
        context="agent",
        server=bed.cluster.api_url,
        authority=bed.cluster.layout.certificates.authority,
        user_name="agent",
        user=kubeconfig.token_user(token),
        namespace="kgwe-node",
    )
    async with clients.connect(limited, field_manager="kgwe-agent") as client:
        await _write(client, "h100-0000")
        with pytest.raises(errors.Permanent, match="an agent may only write objects of its own node"):
            await _write_on(client, "h100-0001")


async def _write(client: KubeClient, node: str) -> None:
    body = {"metadata": {"name": node}, "spec": {"source": "Agent"}}
    await client.apply(resources.GPU_NODE, body)


async def _write_on(client: KubeClient, node: str) -> None:
    """Until it is refused: a policy that was just made counts a moment later."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await _write(client, node)
            await asyncio.sleep(0.1)


async def _token_of_a_pod(bed: AgentBed, node: str) -> str:
    """As the kubelet gets one for a pod of the DaemonSet."""
    spec = {
        "nodeName": node,
        "serviceAccountName": "kgwe-agent",
        "containers": [{"name": "agent", "image": "none"}],
        "tolerations": [{"operator": "Exists"}],
    }
    pod = await bed.client.create(resources.POD, {"metadata": {"name": "agent"}, "spec": spec}, "kgwe-node")
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "agent", "uid": pod.metadata.uid}
    path = "/api/v1/namespaces/kgwe-node/serviceaccounts/kgwe-agent/token"
    reply = await bed.client.request("POST", path, body={"spec": {"boundObjectRef": bound}})
    return str(msgspec.json.decode(reply)["status"]["token"])


async def test_the_whole_manifest_is_accepted(bed: AgentBed):
    documents = manifests.load_manifests(assets.find_asset("deploy/agent.yaml"))
    daemons = next(each for each in documents if each["kind"] == "DaemonSet")
    resource = await manifests.find_resource(bed.client, "apps/v1", "DaemonSet")
    path = resource.path(namespace="kgwe-node", name="kgwe-agent")
    await bed.client.request(
        "PATCH",
        path,
        body=daemons,
        content_type="application/apply-patch+yaml",
        params={"fieldManager": "test", "fieldValidation": "Strict", "dryRun": "All"},
    )


async def _kgwe(*arguments: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kgwe.cli", *arguments, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    return said


async def _answers(client: AgentClient) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if (await client.ping()).driver_ready:
                    return
            except errors.Transient:
                pass
            await asyncio.sleep(0.05)


async def _until_links(client: AgentClient, links: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await client.topology()).gpus[2].nvlink.links != links:  # noqa: ASYNC110 - it has to be asked
            await asyncio.sleep(0.05)
