"""The devices of each pod, from the kubelet's pod-resources socket.

The kubelet returns its current memory: it includes a pod that is being admitted, without devices yet, but neither
ended pods nor ended init containers. It does not return the uid of a pod. It serves about a hundred requests per
second and refuses more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.hardware.kubelet import sockets
from kgwe.model.devices.holdings import ClaimDevice, ContainerDevices, PodDevices
from kgwe.proto import podresources_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import grpc.aio

#: path of the socket, below the kubelet's root directory
SOCKET: Final = "pod-resources/kubelet.sock"
_SERVICE: Final = "/v1.PodResourcesLister"
_DEADLINE_S: Final = 5.0


class PodResources:
    """A client that finds a restarted kubelet on its own."""

    def __init__(self, socket: Path, *, deadline_s: float = _DEADLINE_S) -> None:
        self._socket = socket
        self._deadline_s = deadline_s
        self._channel: grpc.aio.Channel | None = None
        self._identity: tuple[int, int, int] | None = None

    async def list(self, *, deadline_s: float | None = None) -> tuple[PodDevices, ...]:
        """Return all pods of the kubelet; raise Transient if it does not respond (it may be restarting)."""
        channel = await self._connect()
        reply: pb.ListPodResourcesResponse = await sockets.call(
            channel,
            f"{_SERVICE}/List",
            pb.ListPodResourcesRequest(),
            pb.ListPodResourcesResponse,
            deadline_s=deadline_s or self._deadline_s,
        )
        return tuple(_decode_pod(each) for each in reply.pod_resources)

    async def get(self, namespace: str, name: str) -> PodDevices:
        """Return one pod. Raise Permanent if the kubelet does not support it (before 1.34).

        Raise Transient also for an unknown pod: the kubelet returns the same error.
        """
        channel = await self._connect()
        reply: pb.GetPodResourcesResponse = await sockets.call(
            channel,
            f"{_SERVICE}/Get",
            pb.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace),
            pb.GetPodResourcesResponse,
            deadline_s=self._deadline_s,
        )
        return _decode_pod(reply.pod_resources)

    async def list_allocatable(self) -> dict[str, tuple[str, ...]]:
        """Return resource -> ids of all healthy devices, used or not."""
        channel = await self._connect()
        reply: pb.AllocatableResourcesResponse = await sockets.call(
            channel,
            f"{_SERVICE}/GetAllocatableResources",
            pb.AllocatableResourcesRequest(),
            pb.AllocatableResourcesResponse,
            deadline_s=self._deadline_s,
        )
        return dict(_merge_containers(reply.devices))

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def _connect(self) -> grpc.aio.Channel:
        """Return a new channel for a new socket: one to a removed socket would wait before it retries."""
        now = sockets.read_identity(self._socket)
        if now is None:
            raise errors.Transient(
                f"{self._socket} not found: the kubelet is not running, or its root directory differs"
            )
        if self._channel is not None and now != self._identity:
            await self.close()
        if self._channel is None:
            self._channel, self._identity = sockets.open_channel(self._socket), now
        return self._channel


def _decode_pod(pod: pb.PodResources) -> PodDevices:
    return PodDevices(pod.namespace, pod.name, tuple(_decode_container(each) for each in pod.containers))


def _decode_container(container: pb.ContainerResources) -> ContainerDevices:
    claims = tuple(
        ClaimDevice(
            f"{claim.claim_namespace}/{claim.claim_name}",
            each.driver_name,
            each.pool_name,
            each.device_name,
            tuple(device.name for device in each.cdi_devices),
            each.share_id,
        )
        for claim in container.dynamic_resources
        for each in claim.claim_resources
    )
    return ContainerDevices(container.name, _merge_containers(container.devices), claims)


def _merge_containers(devices: Iterable[pb.ContainerDevices]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Merge entries: the kubelet lists a resource once per NUMA node, and some devices several times."""
    found: dict[str, dict[str, None]] = {}
    for each in devices:
        found.setdefault(each.resource_name, {}).update(dict.fromkeys(each.device_ids))
    return tuple((name, tuple(ids)) for name, ids in found.items())
