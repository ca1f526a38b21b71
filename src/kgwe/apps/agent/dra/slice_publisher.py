"""Writes the ResourceSlice of this node: the devices that claims can have.

Only changes are written, each with a new generation of the pool. What another client changed or deleted is written
again: the kubelet, for example, deletes the slices of a driver that was not registered for some time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.api.resource import DRIVER
from kgwe.kube.client.informer import Informer
from kgwe.model.units import backoff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.kube.api.resource import ResourceSlice
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Change

log = structlog.get_logger(__name__)

# Changes within this time are written together.
_SPACING_S: Final = 0.3
_RETRY_S: Final = 1.0


class SlicePublisher:
    """Keeps one ResourceSlice as wanted: it holds 128 devices, more than a node has."""

    def __init__(self, client: KubeClient, node: str) -> None:
        self._client = client
        self._node = node
        self._name = f"kgwe-{node}"
        self._wanted: tuple[dict[str, Any], ...] | None = None
        self._wake = asyncio.Event()
        self._failures = 0
        self.informer: Informer[ResourceSlice] = Informer(
            client, resources.RESOURCE_SLICE, field_selector=f"spec.nodeName={node},spec.driver={DRIVER}"
        )
        self.informer.on_change(self._on_change)
        #: why the slice cannot be written; empty if it can
        self.problem = ""

    def set_devices(self, devices: Sequence[dict[str, Any]] | None) -> None:
        """Set the published devices; None: publish nothing, and remove what was published."""
        wanted = None if devices is None else tuple(devices)
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def list_foreign(self) -> list[str]:
        """Return the names of slices of the same driver that another process writes for this node."""
        return sorted(each.metadata.name for each in self.informer.store.values() if each.metadata.name != self._name)

    def _on_change(self, _change: Change[ResourceSlice]) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Write changes until cancelled."""
        await self.informer.synced.wait()
        while True:
            self._wake.clear()
            delay_s = None
            try:
                await self._write()
            except errors.KgweError as exc:
                self._failures += 1
                if self.problem != str(exc):
                    log.warning("resource_slice_not_written", error=str(exc))
                self.problem = str(exc)
                delay_s = backoff.delay_s(_RETRY_S, self._failures - 1, random.random())  # noqa: S311 - no secret
            else:
                self.problem, self._failures = "", 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()
            await asyncio.sleep(_SPACING_S)

    async def _write(self) -> None:
        there = next((each for each in self.informer.store.values() if each.metadata.name == self._name), None)
        if self._wanted is None:
            if there is not None:
                with contextlib.suppress(errors.NotFound):
                    await self._client.delete(resources.RESOURCE_SLICE, self._name)
            return
        generation = there.spec.pool.generation if there is not None else 1
        spec = self._build_spec(self._wanted, generation)
        if there is None:
            await self._create(spec)
        elif msgspec.convert(spec, type(there.spec)) != there.spec:
            await self._client.patch(
                resources.RESOURCE_SLICE, self._name, {"spec": self._build_spec(self._wanted, generation + 1)}
            )
            log.info("resource_slice_changed", devices=len(self._wanted))

    async def _create(self, spec: dict[str, Any]) -> None:
        node = await self._client.get(resources.NODE, self._node)
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid}
        body = {"metadata": {"name": self._name, "ownerReferences": [owner]}, "spec": spec}
        with contextlib.suppress(errors.AlreadyExists):  # the watch is behind, and will bring it
            await self._client.create(resources.RESOURCE_SLICE, body)
            log.info("resource_slice_created", devices=len(spec["devices"]))

    def _build_spec(self, devices: Sequence[dict[str, Any]], generation: int) -> dict[str, Any]:
        return {
            "driver": DRIVER,
            "nodeName": self._node,
            "pool": {"name": self._node, "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices),
        }
