"""Dynamic resource allocation on a node: what is published, what the kubelet's calls do, and when the plugin is off."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import msgspec
from tests.support.fakes import kubelet as bed
from tests.support.fakes.kubelet import Kubelet, pod, until
from tests.support.fakes.memory_api import MemoryApi
from tests.support.machines import memory_driver
from tests.support.machines.agent_settings import QUICK

from kgwe.apps.agent.main import build_agent
from kgwe.hardware.kubelet import sockets
from kgwe.kube.client import manifests
from kgwe.kube.client.client import KubeClient
from kgwe.kube.translate import device_manifests
from kgwe.local.host import assets
from kgwe.proto import draplugin_pb2 as pb
from kgwe.proto import pluginregistration_pb2 as registration_pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kgwe.model.gpu.driver_data import Machine
    from kgwe.model.simfleet.inventory import FleetNode

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"
SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


class Node:
    """An agent with a driver and an API server in memory, and its sockets as a kubelet sees them."""

    def __init__(self, root: Path, of: FleetNode, **settings: Any) -> None:
        self.root = root
        self.api = MemoryApi()
        self.api.call("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
        self.driver = memory_driver.MemoryDriver(memory_driver.machine(of))
        self.kubelet = root / "var/lib/kubelet"
        self.cdi = root / "var/run/cdi"
        self.registry = self.kubelet / "plugins_registry"
        chosen = msgspec.structs.replace(
            QUICK,
            standalone=False,
            grpc_bind_address="",
            enable_dra=True,
            host_root=str(root),
            cloud="none",
            **settings,
        )
        self.agent = build_agent(chosen, self._open, KubeClient(self.api))
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def _open(self) -> memory_driver.MemoryDriver:
        return self.driver

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.agent.run(self._stop))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task

    @property
    def devices(self) -> list[dict[str, Any]]:
        listed = self.api.call("GET", SLICES)["items"]
        return [device for each in listed for device in each["spec"]["devices"]]

    def claim(self, name: str, *devices: str, **result: Any) -> pb.Claim:
        """A claim that kube-scheduler has allocated."""
        results = [
            {"driver": "gpu.nvidia.com", "pool": "n1", "device": each, "request": "gpus", **result} for each in devices
        ]
        body = {"metadata": {"name": name, "namespace": "team"}}
        made = self.api.call("POST", CLAIMS, body)
        self.api.call("PATCH", f"{CLAIMS}/{name}/status", {"status": {"allocation": {"devices": {"results": results}}}})
        return pb.Claim(namespace="team", name=name, uid=made["metadata"]["uid"])

    async def get_info(self) -> registration_pb.PluginInfo:
        await until(lambda: bool(list(self.registry.glob("*.sock"))))
        (socket,) = self.registry.glob("*.sock")
        info: registration_pb.PluginInfo = await self._call(
            socket,
            "/pluginregistration.Registration/GetInfo",
            registration_pb.InfoRequest(),
            registration_pb.PluginInfo,
        )
        return info

    async def prepare(self, *claims: pb.Claim) -> dict[str, pb.NodePrepareResourceResponse]:
        reply = await self._serve(
            "NodePrepareResources", pb.NodePrepareResourcesRequest(claims=claims), pb.NodePrepareResourcesResponse
        )
        return dict(reply.claims)

    async def unprepare(self, *claims: pb.Claim) -> dict[str, pb.NodeUnprepareResourceResponse]:
        reply = await self._serve(
            "NodeUnprepareResources", pb.NodeUnprepareResourcesRequest(claims=claims), pb.NodeUnprepareResourcesResponse
        )
        return dict(reply.claims)

    async def _serve(self, method: str, request: Any, reply: type[Any]) -> Any:
        endpoint = (await self.get_info()).endpoint
        return await self._call(self.root / endpoint.lstrip("/"), f"{SERVICE}/{method}", request, reply)

    @staticmethod
    async def _call(socket: Path, method: str, request: Any, reply: type[Any]) -> Any:
        channel = sockets.open_channel(socket)
        try:
            return await sockets.call(channel, method, request, reply, deadline_s=30)
        finally:
            await channel.close()

    def describe(self, claim: pb.Claim) -> dict[str, Any]:
        """What the container runtime reads about the claim."""
        described: dict[str, Any] = json.loads((self.cdi / f"kgwe-claim-{claim.uid}.json").read_text())
        return described


@contextlib.asynccontextmanager
async def running(of: FleetNode | None = None, **settings: Any) -> AsyncIterator[Node]:
    with bed.folder() as root:
        async with Node(root, of or memory_driver.node(), **settings) as made:
            yield made


async def test_whole_gpus_are_published_and_prepared():
    async with running() as node:
        await until(lambda: len(node.devices) == 8)
        assert [each["name"] for each in node.devices] == [f"gpu-{number}" for number in range(8)]
        info = await node.get_info()
        assert (info.type, info.name, list(info.supported_versions)) == (
            "DRAPlugin",
            "gpu.nvidia.com",
            ["v1.DRAPlugin"],
        )
        assert info.endpoint.startswith("/var/lib/kubelet/plugins/"), "as the kubelet sees it"
        claim = node.claim("train", "gpu-2", "gpu-5")
        entry = (await node.prepare(claim))[claim.uid]
        assert not entry.error
        uuids = [card.uuid for card in memory_driver.machine(memory_driver.node()).devices]
        assert [(each.pool_name, each.device_name, list(each.request_names)) for each in entry.devices] == [
            ("n1", "gpu-2", ["gpus"]),
            ("n1", "gpu-5", ["gpus"]),
        ]
        assert [each.cdi_device_ids[0].rpartition("=")[2] for each in entry.devices] == [uuids[2], uuids[5]]
        described = node.describe(claim)
        assert f"NVIDIA_VISIBLE_DEVICES={uuids[2]},{uuids[5]}" in described["containerEdits"]["env"]
        assert {f"{described['kind']}={each['name']}" for each in described["devices"]} == {
            each.cdi_device_ids[0] for each in entry.devices
        }
        assert (await node.prepare(claim))[claim.uid] == entry, "again, as after a restart"
        assert not (await node.unprepare(claim))[claim.uid].error
        assert not list(node.cdi.iterdir())
        assert not (await node.unprepare(claim))[claim.uid].error, "twice"


async def test_slices_of_a_cut_gpu_are_published_and_prepared():
    of = next(node for node in memory_driver.fleet_nodes() if any(gpu.is_cut for gpu in node.gpus))
    async with running(of) as node:
        wanted = sum(len(gpu.instances) or 1 for gpu in of.gpus)
        await until(lambda: len(node.devices) == wanted)
        device = next(each for each in node.devices if each["attributes"]["type"]["string"] == "mig")
        claim = node.claim("slice", device["name"])
        (prepared,) = (await node.prepare(claim))[claim.uid].devices
        assert prepared.cdi_device_ids[0].endswith(device["attributes"]["uuid"]["string"])


async def test_shares_have_a_capacity_that_claims_consume():
    async with running(device_plugin_replicas=4) as node:
        await until(lambda: len(node.devices) == 8)
        device = node.devices[0]
        assert device["allowMultipleAllocations"]
        assert device["capacity"][device_manifests.SHARES]["value"] == "4"
        assert "uuid" not in device["attributes"], "a reader would take it for a whole GPU"
        claims = [node.claim(f"share{number}", device["name"], shareID=f"s{number}") for number in range(2)]
        replies = await node.prepare(*claims)
        shares = [replies[claim.uid].devices[0] for claim in claims]
        assert [each.share_id for each in shares] == ["s0", "s1"]
        assert shares[0].cdi_device_ids[0] != shares[1].cdi_device_ids[0], "each claim has its own description"


async def test_one_bad_claim_does_not_delay_others():
    async with running() as node:
        await until(lambda: len(node.devices) == 8)
        good, gone = node.claim("good", "gpu-0"), node.claim("gone", "gpu-77")
        other = node.claim("other", "gpu-1", driver="net.example.com")
        again = pb.Claim(namespace="team", name="good", uid="another-uid")
        evil = pb.Claim(namespace="team", name="good", uid="../../etc/x")
        missing = pb.Claim(namespace="team", name="missing", uid="uid-999")
        replies = await node.prepare(gone, other, again, evil, missing, good)
        assert not replies[good.uid].error
        assert "no such device" in replies[gone.uid].error
        assert "no allocated GPUs" in replies[other.uid].error
        assert "created again" in replies[again.uid].error
        assert "no uid" in replies[evil.uid].error
        assert replies[missing.uid].error
        assert [each.name for each in node.cdi.iterdir()] == [f"kgwe-claim-{good.uid}.json"]
        assert (await node.unprepare(evil))[evil.uid].error


async def test_an_unhealthy_gpu_is_withdrawn():
    async with running() as node:
        await until(lambda: len(node.devices) == 8)
        first = node.api.call("GET", SLICES)["items"][0]["spec"]["pool"]["generation"]
        node.driver.now = _lose(node.driver.now, 3)
        await until(lambda: len(node.devices) == 7)
        assert "gpu-3" not in {each["name"] for each in node.devices}
        assert node.api.call("GET", SLICES)["items"][0]["spec"]["pool"]["generation"] == first + 1


def _lose(machine: Machine, gpu: int) -> Machine:
    devices = tuple(replace(each, is_lost=each.index == gpu) for each in machine.devices)
    return replace(machine, devices=devices)


async def test_a_deleted_slice_is_written_again():
    async with running() as node:
        await until(lambda: len(node.devices) == 8)
        (name,) = [each["metadata"]["name"] for each in node.api.call("GET", SLICES)["items"]]
        node.api.call("DELETE", f"{SLICES}/{name}")
        await until(lambda: len(node.devices) == 8)


async def test_the_plugin_is_off_beside_nvidia_s_driver():
    async with running() as node:
        await until(lambda: len(node.devices) == 8)
        await node.get_info()
        (node.registry / "gpu.nvidia.com-reg.sock").touch()
        await until(lambda: not node.devices and len(list(node.registry.iterdir())) == 1)
        await until(lambda: "another driver" in node.agent.services.failures.get("dra", ""))
        (node.registry / "gpu.nvidia.com-reg.sock").unlink()
        await until(lambda: len(node.devices) == 8 and "dra" not in node.agent.services.failures)


async def test_a_gpu_of_a_plugin_s_pod_is_refused():
    """The kubelet does not know that both names mean one GPU."""
    uuid = memory_driver.machine(memory_driver.node()).devices[0].uuid
    async with running(enable_pod_resources=True) as node:
        node.kubelet.mkdir(parents=True, exist_ok=True)
        kubelet = Kubelet(node.kubelet)
        await kubelet.start()
        try:
            holder = pod("holder", 1)
            kubelet.pods[holder.metadata.key] = holder
            kubelet.given[holder.metadata.key, "c0"] = {"nvidia.com/gpu": (uuid,)}
            await until(lambda: len(node.devices) == 8)
            claim = node.claim("late", "gpu-0")
            assert "held by team/holder" in (await node.prepare(claim))[claim.uid].error
            kubelet.end(holder)
            assert not (await node.prepare(claim))[claim.uid].error
        finally:
            await kubelet.stop()


def test_the_classes_of_the_manifest_are_those_of_the_code():
    written = manifests.load_manifests(assets.find_asset("deploy/device-classes.yaml"))
    assert written == list(device_manifests.list_classes())
