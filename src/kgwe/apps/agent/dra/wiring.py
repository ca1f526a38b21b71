"""Wires dynamic resource allocation: the plugin's sockets, the preparation of claims, and the published devices."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.apps.agent.dra.preparer import ClaimPreparer
from kgwe.apps.agent.dra.slice_publisher import SlicePublisher
from kgwe.apps.agent.hooks import Feature, Task
from kgwe.hardware.kubelet.draplugin import PLUGINS, REGISTRY, DraPlugin
from kgwe.kube.api.resource import DRIVER
from kgwe.kube.translate import device_manifests
from kgwe.model.devices.cdi import ClaimedGpu
from kgwe.model.health import health

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kgwe.apps.agent.services import AgentServices
    from kgwe.hardware.kubelet.podresources import PodResources
    from kgwe.kube.api.kgwe.gpunode import GPUDevice, GPUNodeStatus
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

#: part of the agent in the list of problems
PART: Final = "dra"
_OURS: Final = f"kgwe-{DRIVER}"
_LOOK_S: Final = 1.0


class DraFeature:
    """Offers the GPUs of the node to claims, unless NVIDIA's driver does."""

    def __init__(
        self,
        services: AgentServices,
        client: KubeClient,
        pod_resources: PodResources | None,
        withheld_devices: Callable[[], frozenset[str]],
        *,
        look_s: float = _LOOK_S,
    ) -> None:
        settings = services.settings
        root = Path(settings.host_root)
        kubelet = Path(settings.kubelet_folder)
        inside = root / settings.kubelet_folder.lstrip("/")
        self._services = services
        self._withheld_devices = withheld_devices
        self._look_s = look_s
        self._status: GPUNodeStatus | None = None
        self._registry = inside / REGISTRY
        methods = settings.device_plugin_means
        self._preparer = ClaimPreparer(
            client,
            services.node,
            root / settings.cdi_folder.lstrip("/"),
            pod_resources if settings.enable_pod_resources else None,
            with_env="env" in methods,
            with_nodes="nodes" in methods,
            cdi_kind=settings.cdi_kind if "cdi" in methods else "",
        )
        self._publisher = SlicePublisher(client, services.node)
        self.plugin = DraPlugin(
            DRIVER,
            self._preparer,
            registration=self._registry / f"{_OURS}-reg.sock",
            service=inside / PLUGINS / _OURS / "dra.sock",
            endpoint=str(kubelet / PLUGINS / _OURS / "dra.sock"),
        )

    def to_feature(self) -> Feature:
        return Feature(
            name=PART,
            tasks=(
                Task("resource slices", self._publisher.informer.run),
                Task("resource slice writer", self._publisher.run),
                Task("dra plugin", self.run),
            ),
            on_status=self.set_status,
        )

    def set_status(self, status: GPUNodeStatus) -> None:
        """Take over the devices of a new status. While the driver is unavailable the known devices stay."""
        services = self._services
        if services.state.machine is None or not services.supervisor.state.is_ready:
            return
        self._status = status
        self._offer()

    async def run(self) -> None:
        """Keep the plugin serving until cancelled, and stay away while another driver serves."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(self._look_s)
        finally:
            await self.plugin.stop()

    async def _look(self) -> None:
        if other := self.find_other_driver():
            if self.plugin.is_serving:
                await self.plugin.stop()
            self._set_problem(f"off: another driver serves {DRIVER} on this node ({other})")
        elif not self.plugin.is_serving:
            try:
                await self.plugin.start()
            except errors.KgweError as exc:
                self._set_problem(str(exc))
                return
            self._set_problem("")
        else:
            self._set_problem(self.plugin.problem or self._publisher.problem)
        self._offer()

    def find_other_driver(self) -> str:
        """Return by what another driver of the same name is known: its socket or its slices; empty: there is none."""
        found = next(iter(sorted(each.name for each in self._registry.glob(f"{DRIVER}*.sock"))), "")
        return found or next(iter(self._publisher.list_foreign()), "")

    def _offer(self) -> None:
        """Publish the devices of healthy GPUs, or nothing beside another driver."""
        if self._status is None:
            return
        if self.find_other_driver():
            self._publisher.set_devices(None)
            return
        pieces = self._find_pieces()
        if pieces is None:
            return
        withheld = self._withheld_devices()
        gpus = [
            gpu
            for gpu in self._status.gpus
            if health.is_in_service(gpu.health.state)
            and gpu.uuid not in withheld
            and withheld.isdisjoint(each.uuid for each in gpu.mig.instances)
        ]
        machine = self._services.state.machine
        minors = {each.index: each.minor for each in machine.devices} if machine is not None else {}
        self._preparer.set_devices(dict(_list_claimable(gpus, minors, is_shared=bool(pieces))))
        self._publisher.set_devices(device_manifests.list_devices(self._status, gpus, pieces=pieces))

    def _find_pieces(self) -> int | None:
        """Return the shares of each GPU: as the GPUNode says, else as the settings say; None: not known yet."""
        spec = self._services.read_spec()
        if spec is None:
            return None
        return self._services.settings.device_plugin_replicas if spec.sharing is None else spec.sharing.replicas

    def _set_problem(self, problem: str) -> None:
        failures = self._services.failures
        if problem and failures.get(PART) != problem:
            log.warning("dra_problem", problem=problem)
        if problem:
            failures[PART] = problem
        else:
            failures.pop(PART, None)


def _list_claimable(
    gpus: list[GPUDevice], minors: Mapping[int, int | None], *, is_shared: bool
) -> Iterator[tuple[str, ClaimedGpu]]:
    for gpu in gpus:
        if gpu.mig.enabled:
            for each in gpu.mig.instances:
                yield device_manifests.name_slice(gpu, each), ClaimedGpu(each.uuid, gpu.index)
        else:
            name = device_manifests.name_shared(gpu) if is_shared else device_manifests.name_gpu(gpu)
            yield name, ClaimedGpu(gpu.uuid, gpu.index, minors.get(gpu.index))


def build_dra(
    services: AgentServices,
    client: KubeClient,
    pod_resources: PodResources | None,
    *,
    withheld_devices: Callable[[], frozenset[str]] = frozenset,
) -> Feature:
    """Publish the GPUs for claims, and prepare claims. Devices in `withheld_devices` are not published."""
    return DraFeature(services, client, pod_resources, withheld_devices).to_feature()
