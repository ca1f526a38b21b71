"""A stand-in for the kubelet that speaks the real protocols over unix sockets.

It does what a kubelet does with devices: removes the sockets in the plugins' folder when it starts, connects back to
plugins that register, reads their lists, admits one pod after another, asks for advice, allocates, and remembers what
it gave over its own restarts. What pods hold can be read from its pod-resources socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import msgspec
from tests.support.patience import PATIENCE_S

from kgwe.kube.api import core
from kgwe.model.devices import assignment
from kgwe.model.gpu.driver_data import Device, Instance, Machine, MigState
from kgwe.model.gpu.topology import Slot
from kgwe.proto import deviceplugin_pb2 as plugin_pb
from kgwe.proto import podresources_pb2 as pod_pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from kgwe.model.devices.assignment import DeviceSet

GPU = "nvidia.com/gpu"
_PLUGIN = "/v1beta1.DevicePlugin"


class Refused(Exception):
    """The pod is not admitted."""


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="kl"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


async def until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is in another process or server
            await asyncio.sleep(0.01)


def pod(
    name: str,
    *wants: int,
    resource: str = GPU,
    plan: DeviceSet = assignment.NO_DEVICES,
    namespace: str = "team",
    init: Sequence[int] = (),
    sidecar: Sequence[int] = (),
    created: str = "2026-01-01T00:00:00Z",
) -> core.Pod:
    """A pod bound to the node, a container for each of `wants`."""

    def containers(kind: str, counts: Sequence[int], **more: str) -> list[dict[str, Any]]:
        return [
            {"name": f"{kind}{i}", "resources": {"limits": {resource: str(count)}}, **more}
            for i, count in enumerate(counts)
        ]

    meta = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "creationTimestamp": created,
        "annotations": assignment.format_annotations(plan),
    }
    spec = {
        "nodeName": "n1",
        "initContainers": [*containers("side", sidecar, restartPolicy="Always"), *containers("init", init)],
        "containers": containers("c", wants),
    }
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}, core.Pod)


def machine(cards: int = 8, cut: Mapping[int, Sequence[tuple[str, int, int]]] | None = None) -> Machine:
    """Cards of two sockets; `cut`: card -> (profile, start, size) of its slices."""
    return Machine("570.1", "12.8", tuple(_card(i, cards, (cut or {}).get(i, ())) for i in range(cards)))


def _card(index: int, cards: int, cut: Sequence[tuple[str, int, int]]) -> Device:
    instances = tuple(
        Instance(f"MIG-{index}-{start}", i + 1, profile, start, size, 10_000)
        for i, (profile, start, size) in enumerate(cut)
    )
    return Device(
        f"GPU-{index}",
        index,
        "NVIDIA H100 80GB HBM3",
        81_559,
        Slot(f"00000000:{index:02X}:00.0", numa=index * 2 // cards),
        minor=index,
        mig=MigState(is_capable=True, is_enabled=bool(cut), instances=instances),
    )


class Pods:
    """The pods of the node, as the agent's cache of the API would tell them."""

    def __init__(self) -> None:
        self.known: dict[str, core.Pod] = {}
        #: pods only a live read shows: the watch has not delivered them yet
        self.late: dict[str, core.Pod] = {}
        #: a live read never ends
        self.hangs = False

    def add(self, *pods: core.Pod) -> None:
        self.known |= {each.metadata.key: each for each in pods}

    def pods(self) -> list[core.Pod]:
        return list(self.known.values())

    async def find(self, namespace: str, name: str) -> core.Pod | None:
        if self.hangs:
            await asyncio.Event().wait()
        key = f"{namespace}/{name}"
        return self.late.get(key) or self.known.get(key)


class Kubelet:
    def __init__(self, root: Path) -> None:
        self.plugins = root / "device-plugins"
        self.socket = root / "pod-resources" / "kubelet.sock"
        self.pods: dict[str, core.Pod] = {}
        #: (pod, container) -> resource -> devices: its checkpoint
        self.given: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
        self.devices: dict[str, dict[str, str]] = {}  # resource -> device -> health
        self.registrations: list[str] = []
        self.lists = 0
        #: does not ask plugins, or does otherwise than they say
        self.stubborn = False
        #: answers nothing on the pod-resources socket
        self.is_mute = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._servers: list[grpc.aio.Server] = []
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._streams: set[asyncio.Task[None]] = set()
        self._admission = asyncio.Lock()

    # --- running ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        for path in (self.plugins, self.socket.parent):
            path.mkdir(exist_ok=True)
            for old in path.iterdir():
                old.unlink()
        self._servers = [
            await _serving(
                self.plugins / "kubelet.sock", "v1beta1.Registration", {"Register": self._register_handler()}
            ),
            await _serving(self.socket, "v1.PodResourcesLister", self._lister_handlers()),
        ]

    async def stop(self) -> None:
        for stream in self._streams:
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()
        for server in self._servers:
            await server.stop(None)
        self._channels, self._servers, self.devices = {}, [], {}

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    # --- plugins ----------------------------------------------------------------------------------------

    def _register_handler(self) -> Any:
        async def register(request: plugin_pb.RegisterRequest, context: Any) -> plugin_pb.Empty:
            if request.version != "v1beta1" or "/" not in request.resource_name:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unsupported")
            await self._connect(request.resource_name, self.plugins / request.endpoint)
            self.registrations.append(request.resource_name)
            return plugin_pb.Empty()

        return _unary(register, plugin_pb.RegisterRequest, plugin_pb.Empty)

    async def _connect(self, resource: str, endpoint: Path) -> None:
        if (old := self._channels.pop(resource, None)) is not None:
            await old.close()
        channel = self._channels[resource] = grpc.aio.insecure_channel(
            f"unix:{endpoint}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        stream = asyncio.create_task(self._read(resource, channel))
        self._streams.add(stream)
        stream.add_done_callback(self._streams.discard)

    async def _read(self, resource: str, channel: grpc.aio.Channel) -> None:
        listed = channel.unary_stream(
            f"{_PLUGIN}/ListAndWatch",
            request_serializer=plugin_pb.Empty.SerializeToString,
            response_deserializer=plugin_pb.ListAndWatchResponse.FromString,
        )(plugin_pb.Empty())
        try:
            async for reply in listed:
                self.lists += 1
                self.devices[resource] = {each.ID: each.health for each in reply.devices}
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        if self._channels.get(resource) is channel:
            # The plugin is gone: nothing of it can be had until it is back.
            self.devices[resource] = dict.fromkeys(self.devices.get(resource, ()), "Unhealthy")

    def healthy(self, resource: str = GPU) -> set[str]:
        return {each for each, health in self.devices.get(resource, {}).items() if health == "Healthy"}

    # --- pods -------------------------------------------------------------------------------------------

    async def admit(self, new: core.Pod) -> dict[str, plugin_pb.ContainerAllocateResponse]:
        """Container -> what the plugin says it needs."""
        async with self._admission:
            return await self._admit(new)

    async def _admit(self, new: core.Pod) -> dict[str, plugin_pb.ContainerAllocateResponse]:
        key = new.metadata.key
        self.pods[key] = new
        answers = {}
        reusable: set[str] = set()
        try:
            for container in (*new.spec.initContainers, *new.spec.containers):
                for resource, count in container.resources.limits.items():
                    ids = await self._choose(key, resource, int(count), reusable)
                    answers[container.name] = await self._allocate(resource, ids)
                    self.given[key, container.name] = {resource: tuple(ids)}
                    if container in new.spec.initContainers and container.restartPolicy != "Always":
                        reusable |= set(ids)
                    else:
                        reusable -= set(ids)
        except Refused:
            self.end(new)
            raise
        return answers

    def end(self, old: core.Pod) -> None:
        """The pod has ended: what it had is free."""
        key = old.metadata.key
        self.pods.pop(key, None)
        self.given = {each: had for each, had in self.given.items() if each[0] != key}

    def held(self, key: str, resource: str = GPU) -> set[str]:
        return {each for (pod, _), had in self.given.items() if pod == key for each in had.get(resource, ())}

    def in_use(self, resource: str = GPU) -> list[str]:
        """By running containers; a device two of them have is there twice."""
        return [
            each
            for (key, container), had in self.given.items()
            if not container.startswith("init")
            for each in had.get(resource, ())
        ]

    async def _choose(self, key: str, resource: str, count: int, reusable: set[str]) -> list[str]:
        kept = sorted(reusable)[:count]
        taken = {each for had in self.given.values() for each in had.get(resource, ())}
        available = self.healthy(resource) - taken
        if len(available) < count - len(kept):
            raise Refused(f"{key}: {count} of {resource} wanted, {len(available)} free")
        if len(kept) == count:
            return kept
        preferred = [] if self.stubborn else await self.prefer(resource, sorted(available | set(kept)), kept, count)
        rest = [each for each in preferred if each in available and each not in kept]
        rest += [each for each in sorted(available, reverse=True) if each not in rest]
        return kept + rest[: count - len(kept)]

    async def prefer(self, resource: str, available: Sequence[str], must: Sequence[str], count: int) -> list[str]:
        request = plugin_pb.PreferredAllocationRequest()
        request.container_requests.add(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=count
        )
        ask = self._channels[resource].unary_unary(
            f"{_PLUGIN}/GetPreferredAllocation",
            request_serializer=plugin_pb.PreferredAllocationRequest.SerializeToString,
            response_deserializer=plugin_pb.PreferredAllocationResponse.FromString,
        )
        try:
            reply = await ask(request, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as exc:
            raise Refused(str(exc.details())) from exc
        return list(reply.container_responses[0].deviceIDs)

    async def _allocate(self, resource: str, ids: Sequence[str]) -> plugin_pb.ContainerAllocateResponse:
        request = plugin_pb.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        ask = self._channels[resource].unary_unary(
            f"{_PLUGIN}/Allocate",
            request_serializer=plugin_pb.AllocateRequest.SerializeToString,
            response_deserializer=plugin_pb.AllocateResponse.FromString,
        )
        try:
            reply = await ask(request, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as exc:
            raise Refused(f"{exc.code().name}: {exc.details()}") from exc
        return reply.container_responses[0]

    async def allocate(self, *ids: str, resource: str = GPU) -> plugin_pb.ContainerAllocateResponse:
        """As a kubelet would that has lost its mind."""
        return await self._allocate(resource, ids)

    # --- pod resources ----------------------------------------------------------------------------------

    def _lister_handlers(self) -> dict[str, Any]:
        async def listed(_request: Any, context: Any) -> pod_pb.ListPodResourcesResponse:
            if self.is_mute:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "mute")
            await self.may_answer.wait()
            return pod_pb.ListPodResourcesResponse(pod_resources=[self._resources(key) for key in self.pods])

        async def one(request: pod_pb.GetPodResourcesRequest, context: Any) -> pod_pb.GetPodResourcesResponse:
            key = f"{request.pod_namespace}/{request.pod_name}"
            if key not in self.pods:
                await context.abort(grpc.StatusCode.UNKNOWN, f"pod {key} not found")
            return pod_pb.GetPodResourcesResponse(pod_resources=self._resources(key))

        async def allocatable(_request: Any, _context: Any) -> pod_pb.AllocatableResourcesResponse:
            return pod_pb.AllocatableResourcesResponse(
                devices=[
                    pod_pb.ContainerDevices(resource_name=resource, device_ids=[each])
                    for resource in self.devices
                    for each in sorted(self.healthy(resource))
                ]
            )

        return {
            "List": _unary(listed, pod_pb.ListPodResourcesRequest, pod_pb.ListPodResourcesResponse),
            "Get": _unary(one, pod_pb.GetPodResourcesRequest, pod_pb.GetPodResourcesResponse),
            "GetAllocatableResources": _unary(
                allocatable, pod_pb.AllocatableResourcesRequest, pod_pb.AllocatableResourcesResponse
            ),
        }

    def _resources(self, key: str) -> pod_pb.PodResources:
        namespace, _, name = key.partition("/")
        spec = self.pods[key].spec
        sidecars = [each for each in spec.initContainers if each.restartPolicy == "Always"]
        result = pod_pb.PodResources(name=name, namespace=namespace)
        for container in (*sidecars, *spec.containers):
            had = self.given.get((key, container.name), {})
            result.containers.add(
                name=container.name,
                # One entry per NUMA node, as a kubelet writes it.
                devices=[
                    pod_pb.ContainerDevices(resource_name=resource, device_ids=[each])
                    for resource, ids in had.items()
                    for each in ids
                ],
            )
        return result


async def _serving(path: Path, service: str, methods: Mapping[str, Any]) -> grpc.aio.Server:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(methods)),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


def _unary(call: Callable[[Any, Any], Awaitable[Any]], request: type[Any], reply: type[Any]) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        call,
        request_deserializer=request.FromString,
        response_serializer=reply.SerializeToString,
    )
