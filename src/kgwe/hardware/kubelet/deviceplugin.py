"""A device plugin (`v1beta1`): advertises one resource to the kubelet.

The plugin serves on a socket in the kubelet's directory and then registers. The kubelet connects back, reads the list
of devices and calls before each allocation. A starting kubelet removes all sockets in the directory: `is_current`
then returns False, and the plugin must serve and register again.

An `Allocator` makes the decisions; this module only implements the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc
import grpc.aio

from kgwe import errors
from kgwe.hardware.kubelet import sockets
from kgwe.proto import deviceplugin_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

#: the kubelet's socket in the plugin directory
KUBELET_SOCKET: Final = "kubelet.sock"
_VERSION: Final = "v1beta1"
_HEALTH: Final = {True: "Healthy", False: "Unhealthy"}
_DEADLINE_S: Final = 5.0
# A kubelet reopens an ended stream only after the plugin has registered again.
_GRACE_S: Final = 0.2

_OPTIONS: Final = pb.DevicePluginOptions(get_preferred_allocation_available=True)
_CODES: Final = (
    (errors.Conflict, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.Transient, grpc.StatusCode.UNAVAILABLE),
    (errors.Permanent, grpc.StatusCode.INVALID_ARGUMENT),
)


@dataclass(frozen=True, slots=True)
class AdvertisedDevice:
    """A device as advertised to the kubelet."""

    id: str
    is_healthy: bool = True
    numa: int | None = None


@dataclass(frozen=True, slots=True)
class AllocationResponse:
    """The settings of a container for access to its devices."""

    envs: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()
    #: device nodes of the host, with the same path in the container
    nodes: tuple[str, ...] = ()


class Allocator(Protocol):
    """Decides about allocations. One call is for one container; the kubelet does not name it."""

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]: ...

    async def allocate(self, resource: str, ids: Sequence[str]) -> AllocationResponse:
        """Raise Conflict, NotFound or Permanent if the devices must not be allocated: the pod is then refused."""
        ...


class DevicePlugin:
    """The plugin of one resource on one socket."""

    def __init__(self, folder: Path, endpoint: str, resource: str, allocator: Allocator) -> None:
        self.resource = resource
        self._folder = folder
        self._endpoint = endpoint
        self._allocator = allocator
        self._devices: tuple[AdvertisedDevice, ...] = ()
        self._version = 0
        self._news = asyncio.Condition()
        self._telling: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None
        self._socket: tuple[int, int, int] | None = None
        self._registered_at: tuple[int, int, int] | None = None
        #: open ListAndWatch streams
        self.readers = 0

    # --- what is offered --------------------------------------------------------------------------------

    def advertise(self, devices: Sequence[AdvertisedDevice]) -> None:
        """Set the devices and send them to every open ListAndWatch stream."""
        if tuple(devices) == self._devices:
            return
        self._devices = tuple(devices)
        self._version += 1
        task = asyncio.get_running_loop().create_task(self._notify_streams())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _notify_streams(self) -> None:
        async with self._news:
            self._news.notify_all()

    # --- serving ----------------------------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Return whether the plugin serves on the current socket and is registered with the current kubelet."""
        path, kubelet = self._folder / self._endpoint, self._folder / KUBELET_SOCKET
        return (
            self._server is not None
            and self._socket is not None
            and sockets.read_identity(path) == self._socket
            and self._registered_at is not None
            and sockets.read_identity(kubelet) == self._registered_at
        )

    async def start(self) -> None:
        """Serve and register again; raise Transient if there is no kubelet, or it refuses."""
        kubelet = self._folder / KUBELET_SOCKET
        there = sockets.read_identity(kubelet)
        if there is None:
            raise errors.Transient(f"{kubelet} not found: the kubelet is not running, or its root directory differs")
        await self.stop()
        await self._serve()
        await self._register(kubelet)
        self._registered_at = there

    async def _serve(self) -> None:
        path = self._folder / self._endpoint
        # Left by a killed process: nothing listens there.
        path.unlink(missing_ok=True)
        server = grpc.aio.server(options=sockets.OPTIONS)
        server.add_generic_rpc_handlers((_build_handlers(self),))
        try:
            server.add_insecure_port(sockets.socket_target(path))
            await server.start()
        except RuntimeError as exc:
            raise errors.Transient(f"cannot listen on {path}: {exc}") from exc
        self._server, self._socket = server, sockets.read_identity(path)

    async def _register(self, kubelet: Path) -> None:
        channel = sockets.open_channel(kubelet)
        request = pb.RegisterRequest(
            version=_VERSION, endpoint=self._endpoint, resource_name=self.resource, options=_OPTIONS
        )
        try:
            await sockets.call(channel, "/v1beta1.Registration/Register", request, pb.Empty, deadline_s=_DEADLINE_S)
        finally:
            await channel.close()

    async def stop(self) -> None:
        server, self._server = self._server, None
        mine, self._socket, self._registered_at = self._socket, None, None
        if server is not None:
            await server.stop(_GRACE_S)
            path = self._folder / self._endpoint
            if mine is not None and sockets.read_identity(path) == mine:
                with contextlib.suppress(OSError):
                    path.unlink()

    # --- the protocol -----------------------------------------------------------------------------------

    async def options(self, _request: pb.Empty, _context: Any) -> pb.DevicePluginOptions:
        return _OPTIONS

    async def list_and_watch(self, _request: pb.Empty, _context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        self.readers += 1
        try:
            while True:
                told = self._version
                yield pb.ListAndWatchResponse(devices=[_encode_device(each) for each in self._devices])
                async with self._news:
                    while self._version == told:
                        await self._news.wait()
        finally:
            self.readers -= 1

    async def get_preferred_allocation(
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        reply = pb.PreferredAllocationResponse()
        for each in request.container_requests:
            ids = await self._read_request(
                context,
                self._allocator.prefer(
                    self.resource, each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size
                ),
            )
            reply.container_responses.add(deviceIDs=ids)
        return reply

    async def allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        reply = pb.AllocateResponse()
        for each in request.container_requests:
            granted = await self._read_request(context, self._allocator.allocate(self.resource, each.devices_ids))
            reply.container_responses.append(_encode_response(granted))
        return reply

    async def pre_start(self, _request: pb.PreStartContainerRequest, _context: Any) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()

    @staticmethod
    async def _read_request(context: Any, answer: Any) -> Any:
        try:
            return await answer
        except errors.KgweError as exc:
            code = next((code for kind, code in _CODES if isinstance(exc, kind)), grpc.StatusCode.INTERNAL)
            await context.abort(code, str(exc))


def _encode_device(device: AdvertisedDevice) -> pb.Device:
    near = pb.TopologyInfo(nodes=[pb.NUMANode(ID=device.numa)]) if device.numa is not None else None
    return pb.Device(ID=device.id, health=_HEALTH[device.is_healthy], topology=near)


def _encode_response(granted: AllocationResponse) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=dict(granted.envs),
        cdi_devices=[pb.CDIDevice(name=name) for name in granted.cdi],
        devices=[pb.DeviceSpec(container_path=path, host_path=path, permissions="rw") for path in granted.nodes],
    )


def _build_handlers(plugin: DevicePlugin) -> grpc.GenericRpcHandler:
    def build_handler(call: Any, request: type[Any], reply: type[Any]) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            call, request_deserializer=request.FromString, response_serializer=reply.SerializeToString
        )

    return grpc.method_handlers_generic_handler(
        "v1beta1.DevicePlugin",
        {
            "GetDevicePluginOptions": build_handler(plugin.options, pb.Empty, pb.DevicePluginOptions),
            "GetPreferredAllocation": build_handler(
                plugin.get_preferred_allocation, pb.PreferredAllocationRequest, pb.PreferredAllocationResponse
            ),
            "Allocate": build_handler(plugin.allocate, pb.AllocateRequest, pb.AllocateResponse),
            "PreStartContainer": build_handler(
                plugin.pre_start, pb.PreStartContainerRequest, pb.PreStartContainerResponse
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                plugin.list_and_watch,
                request_deserializer=pb.Empty.FromString,
                response_serializer=pb.ListAndWatchResponse.SerializeToString,
            ),
        },
    )
