"""Prepares the devices of ResourceClaims: one description per claim for the container runtime.

The descriptions on disk are the only state. Preparing again writes the same file, and a restarted agent needs nothing
else.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import msgspec

from kgwe import errors
from kgwe.hardware.kubelet.draplugin import PreparedDevice
from kgwe.kube.api import resources
from kgwe.kube.api.resource import DRIVER
from kgwe.model.devices import cdi, holdings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kgwe.hardware.kubelet.draplugin import ClaimReference
    from kgwe.hardware.kubelet.podresources import PodResources
    from kgwe.kube.api.resource import DeviceResult, ResourceClaim
    from kgwe.kube.client.client import KubeClient
    from kgwe.model.devices.cdi import ClaimedGpu


class ClaimPreparer:
    """Writes and removes the descriptions of claims that have devices of this node."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        folder: Path,
        pod_resources: PodResources | None,
        *,
        with_env: bool = True,
        with_nodes: bool = False,
        cdi_kind: str = "",
    ) -> None:
        """`folder` is where the container runtime looks for descriptions. `cdi_kind`: also pass the names of the
        node's own description of this kind; empty: do not.
        """
        self._client = client
        self._node = node
        self._folder = folder
        self._pod_resources = pod_resources
        self._with_env = with_env
        self._with_nodes = with_nodes
        self._cdi_kind = cdi_kind
        self._devices: Mapping[str, ClaimedGpu] | None = None

    def set_devices(self, devices: Mapping[str, ClaimedGpu]) -> None:
        """Set the devices of the node, by the name under which they are published."""
        self._devices = devices

    async def prepare(self, claim: ClaimReference) -> Sequence[PreparedDevice]:
        """Describe the devices of the claim to the container runtime; raise a KgweError if a device is not usable."""
        results = self._select_results(await self._read(claim))
        gpus = [self._find_device(each) for each in results]
        await self._refuse_held(
            {
                f"{gpu.uuid}{holdings.SHARE_SEPARATOR}{each.shareID}" if each.shareID else gpu.uuid
                for gpu, each in zip(gpus, results, strict=True)
                if not each.adminAccess
            }
        )
        described = cdi.describe_claim(claim.uid, gpus, with_env=self._with_env, with_nodes=self._with_nodes)
        await asyncio.to_thread(self._write, claim.uid, msgspec.json.encode(described))
        return [
            PreparedDevice(each.pool, each.device, (each.request,), self._name_device(claim.uid, gpu), each.shareID)
            for gpu, each in zip(gpus, results, strict=True)
        ]

    async def unprepare(self, claim: ClaimReference) -> None:
        """Remove the description. The claim itself may be gone from the API by now."""
        _check_uid(claim.uid)
        await asyncio.to_thread((self._folder / cdi.file_name(claim.uid)).unlink, missing_ok=True)

    async def _read(self, claim: ClaimReference) -> ResourceClaim:
        _check_uid(claim.uid)
        found = await self._client.get(resources.RESOURCE_CLAIM, claim.name, claim.namespace)
        if found.metadata.uid != claim.uid:
            raise errors.Conflict(f"ResourceClaim {claim} was deleted and created again; its uid is another now")
        return found

    def _select_results(self, claim: ResourceClaim) -> list[DeviceResult]:
        """Return the devices of our driver on this node: a claim may also have devices of other drivers."""
        allocation = claim.status.allocation
        found = [
            each
            for each in (allocation.devices.results if allocation else ())
            if each.driver == DRIVER and each.pool == self._node
        ]
        if not found:
            raise errors.Conflict(f"ResourceClaim {claim.metadata.key} has no allocated GPUs of node {self._node}")
        return found

    def _find_device(self, result: DeviceResult) -> ClaimedGpu:
        if self._devices is None:
            raise errors.Transient("the GPUs of the node are not read yet")
        gpu = self._devices.get(result.device)
        if gpu is None:
            raise errors.NotFound(f"{result.device}: no such device on node {self._node} any more")
        return gpu

    def _name_device(self, uid: str, gpu: ClaimedGpu) -> tuple[str, ...]:
        mine = cdi.format_name(uid, gpu.uuid)
        return (mine, f"{self._cdi_kind}={gpu.uuid}") if self._cdi_kind else (mine,)

    async def _refuse_held(self, wanted: Iterable[str]) -> None:
        """Raise Conflict if a pod has one of these devices from a device plugin; the kubelet then tries again."""
        if self._pod_resources is None:
            return
        for pod in await self._pod_resources.list():
            held = [each for container in pod.containers for _, ids in container.devices for each in ids]
            if taken := {
                holdings.device_uuid(each)
                for each in wanted
                if any(holdings.devices_conflict(each, other) for other in held)
            }:
                raise errors.Conflict(f"{', '.join(sorted(taken))}: held by {pod.key} through the device plugin")

    def _write(self, uid: str, data: bytes) -> None:
        """Write the complete description before it gets its name: a runtime reads all files of the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / cdi.file_name(uid)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        partial.write_bytes(data)
        partial.replace(path)


def _check_uid(uid: str) -> None:
    if not cdi.is_valid_uid(uid):
        raise errors.Permanent(f"{uid!r} is no uid of a ResourceClaim")
