"""Plain pods and gangs of plain pods for tests of the extender, and a scheduler that kube-scheduler asks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
from tests.support.patience import PATIENCE_S

from kgwe.cluster.workload import placement_annotations
from kgwe.kube.api import resources
from kgwe.kube.translate import podspec
from kgwe.local.cluster import extender
from kgwe.model.simfleet import inventory
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from tests.support.clusters.bed import Bed, Replica

LEAF = "fabric.topograph.run/tier-0"
SPINE = "fabric.topograph.run/tier-1"


class Live:
    """A bed whose kube-scheduler asks whichever scheduler leads."""

    def __init__(self, bed: Bed, port: int) -> None:
        self.bed = bed
        self.port = port
        self._tls = extender.client_context(bed.cluster.layout.certificates)

    async def scheduler(self, **settings: str) -> Replica:
        files = extender.server_files(self.bed.cluster.layout.certificates)
        usual = {
            "extender_bind_address": f"127.0.0.1:{self.port}",
            "extender_tls_cert_file": str(files.certificate),
            "extender_tls_key_file": str(files.key),
            "extender_tls_client_ca_file": str(files.authority),
            "debug_snapshot": "true",
        }
        return await self.bed.controller(command="scheduler", **usual | settings)

    async def nodes(self, leaves: dict[str, int], gpus: int = 8) -> None:
        """So many nodes per leaf, named after it."""
        for leaf, count in leaves.items():
            for number in range(count):
                # Of a simulated fleet: it can be broken on command.
                labels = {LEAF: leaf, SPINE: "s", inventory.FLEET_LABEL: "test"}
                await self.bed.node(f"{leaf}-{number}", gpus, labels=labels)

    async def pod(self, name: str, gpus: int = 1, **changes: Any) -> Any:
        return await self.bed.client.create(resources.POD, pod(name, gpus, **changes), "default")

    async def gang(self, name: str, size: int, gpus: int = 8, *, made: int | None = None, **said: str) -> list[Any]:
        """Pods of a gang of `size`; `made`: how many of them are created."""
        return [
            await self.pod(f"{name}-{number}", gpus, annotations=gang(name, size, **said))
            for number in range(size if made is None else made)
        ]

    async def call(self, path: str, body: Any) -> httpx2.Response:
        """As kube-scheduler would, or worse."""
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self._ask("POST", path, content)

    async def snapshot(self) -> Any:
        return (await self._ask("GET", "/debug/snapshot")).json()

    async def _ask(self, method: str, path: str, content: bytes = b"") -> httpx2.Response:
        """Only the leader listens; it may be about to."""
        async with asyncio.timeout(PATIENCE_S), httpx2.AsyncClient(timeout=PATIENCE_S, verify=self._tls) as client:
            while True:
                try:
                    return await client.request(method, f"https://127.0.0.1:{self.port}{path}", content=content)
                except httpx2.ConnectError:
                    await asyncio.sleep(0.05)

    # --- seeing -----------------------------------------------------------------------------------------

    def node_of(self, name: str) -> str:
        found = self.bed.pods.store.get(f"default/{name}")
        return found.spec.nodeName if found is not None else ""

    def bound(self, prefix: str) -> dict[str, str]:
        """Pod -> node, of those that have one."""
        return {
            pod.metadata.name: pod.spec.nodeName
            for pod in self.bed.pods.store.values()
            if pod.metadata.name.startswith(prefix) and pod.spec.nodeName
        }

    async def until_bound(self, prefix: str, count: int, timeout_s: float = PATIENCE_S) -> dict[str, str]:
        await self.bed.until(lambda: len(self.bound(prefix)) == count, timeout_s)
        return self.bound(prefix)

    def overbooked(self) -> dict[str, int]:
        """Nodes whose pods hold more GPUs than they have."""
        held = self.bed.gpus_bound()
        offered = {
            name: podspec.read_allocatable(node).get(amounts.GPU, 0) for name, node in self.bed.nodes.store.items()
        }
        return {name: count for name, count in held.items() if count > offered.get(name, 0)}

    def leaves(self, prefix: str) -> set[str]:
        return {self.bed.nodes.store[node].metadata.labels[LEAF] for node in self.bound(prefix).values()}


def gang(name: str, size: int, **said: str) -> dict[str, str]:
    """`required="leaf"` becomes `kgwe.nvidia.io/topology-required: leaf`."""
    named = {f"kgwe.nvidia.io/topology-{key}": value for key, value in said.items()}
    return {"kgwe.nvidia.io/gang": name, "kgwe.nvidia.io/gang-size": str(size), **named}


def pod(
    name: str,
    gpus: int = 1,
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    gated: bool = False,
    **spec: Any,
) -> dict[str, Any]:
    wants = {amounts.GPU: str(gpus)} if gpus else {}
    container = {"name": "main", "image": "example.com/work:1", "resources": {"limits": wants}}
    gates = {"schedulingGates": [{"name": placement_annotations.GATE}]} if gated else {}
    said = {"kgwe.nvidia.io/simulated-duration": "1h", **(annotations or {})}
    return {
        "metadata": {"name": name, "annotations": said, "labels": labels or {}},
        "spec": {"containers": [container], "restartPolicy": "Never", **gates, **spec},
    }
