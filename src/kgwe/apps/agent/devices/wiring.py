"""Adds the kubelet features to the agent: the devices that pods hold, and the device plugins."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe.apps.agent.devices.deviceplugin import FOLDER, DevicePlugins
from kgwe.apps.agent.devices.holdings import PodHoldings
from kgwe.apps.agent.metrics.exporter import render_labels
from kgwe.apps.agent.metrics.families import make_counter, make_gauge
from kgwe.apps.agent.node_pods import KubeletAccess, NodePods
from kgwe.apps.agent.status import gpunode_status
from kgwe.hardware.kubelet.podresources import SOCKET, PodResources
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpunode import HealthState
from kgwe.kube.client.events import Event, EventRecorder
from kgwe.model.devices import advertised

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.apps.agent.devices.allocator import DeviceAllocator, Outcome
    from kgwe.apps.agent.services import AgentServices
    from kgwe.apps.agent.settings import Settings
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUDevice, GPUNodeStatus
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Change
    from kgwe.model.devices.holdings import Difference

_HELD: Final = make_gauge(
    "kgwe_pods_holding_devices", "Pods that hold GPUs or slices of the node, from the kubelet's list."
)
_OFF_PLAN: Final = make_gauge("kgwe_pods_off_plan", "Pods that hold other devices than planned, by reason.")
_ALLOCATIONS: Final = make_counter(
    "kgwe_device_allocations_total", "Allocate calls to KGWE's device plugin, by outcome."
)


class KubeletDevices:
    """Reports the devices that pods hold, and runs the device plugins."""

    def __init__(self, services: AgentServices, client: KubeClient, kubelet: KubeletAccess) -> None:
        settings = services.settings
        self._services = services
        self._prefix = settings.device_plugin_prefix
        self._shares = settings.device_plugin_replicas
        self._kubelet = kubelet
        self.holdings: PodHoldings | None = None
        self.plugins: DevicePlugins | None = None
        self._allocator: DeviceAllocator | None = None
        self._outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
        services.tasks.add("pods", kubelet.pods.run)
        if settings.enable_pod_resources:
            self._add_holdings(client)
        if settings.enable_device_plugin:
            self._add_plugins(_kubelet_folder(settings) / FOLDER)
        services.hooks.renderers.append(self.render)

    # --- what pods hold ---------------------------------------------------------------------------------

    def _add_holdings(self, client: KubeClient) -> None:
        services, hooks, kubelet = self._services, self._services.hooks, self._kubelet
        prefixes = dict.fromkeys((f"{advertised.DEFAULT_PREFIX}/", f"{self._prefix}/"))
        events = EventRecorder(client, controller="kgwe-agent", instance=services.node)

        def record_event(pod: core.Pod, difference: Difference) -> None:
            said = (difference.reason, difference.message, "Starting")
            events.record(Event(resources.POD, pod.metadata, "Warning", *said))

        holdings = self.holdings = PodHoldings(
            kubelet.pod_resources,
            kubelet.pods,
            prefixes=tuple(prefixes),
            on_news=services.reporter.report,
            on_difference=record_event,
        )

        def on_pod(change: Change[core.Pod]) -> None:
            if change.old is None or change.new is None or change.old.status.phase != change.new.status.phase:
                holdings.request_refresh()

        kubelet.pods.informer.on_change(on_pod)
        hooks.on_machine.append(holdings.set_machine)
        hooks.amend_status.append(holdings.amend_status)
        hooks.conditions.append(holdings.condition)
        services.tasks.add("holdings", holdings.run)
        services.tasks.add("events of pods", events.run)

    # --- device plugins ---------------------------------------------------------------------------------

    def _add_plugins(self, folder: Path) -> None:
        # Imported here, because it loads NumPy, a fifth of the agent.
        from kgwe.apps.agent.devices.allocator import AccessMethod, ContainerAccess, DeviceAllocator  # noqa: PLC0415

        settings = self._services.settings
        access = ContainerAccess(tuple(AccessMethod(each) for each in settings.device_plugin_means), settings.cdi_kind)
        self._allocator = DeviceAllocator(
            self._kubelet.pods,
            self._kubelet.pod_resources if settings.enable_pod_resources else None,
            access=access,
            on_outcome=self._on_outcome,
        )
        self.plugins = DevicePlugins(folder, self._allocator)
        # Last of all features that change the report: GPUs reported as healthy are advertised.
        self._services.hooks.amend_status.append(self._advertise)
        self._services.tasks.add("device plugin", self.plugins.run)

    def _advertise(self, status: GPUNodeStatus) -> GPUNodeStatus:
        """Advertise the devices of healthy GPUs.

        While the driver is unavailable the advertised devices stay, because running pods continue.
        """
        services = self._services
        machine = services.reporter.machine
        if machine is None or self._allocator is None or self.plugins is None or not services.reporter.driver.is_ready:
            return status
        closed = find_unhealthy(status.gpus) | services.hooks.withheld_devices()
        offers = advertised.list_advertised(machine, out_of_service=closed, prefix=self._prefix, pieces=self._shares)
        self._allocator.set_devices(offers, gpunode_status.build_wiring(machine, status))
        self.plugins.advertise(offers)
        return status

    def _on_outcome(self, resource: str, outcome: Outcome) -> None:
        self._outcomes[resource, outcome] += 1
        if self.holdings is not None:
            self.holdings.request_refresh()

    # --- metrics ----------------------------------------------------------------------------------------

    def render(self) -> bytes:
        """Return the /metrics lines about pods and allocations."""
        node = ("node", self._services.node)
        lines: list[str] = []
        if self.holdings is not None and not self.holdings.problem:
            reasons = collections.Counter(each.reason for each in self.holdings.differences)
            lines += [_HELD.header, f"{_HELD.name}{render_labels(node)}{len(self.holdings.held)}\n", _OFF_PLAN.header]
            for reason in ("OtherDevices", "HeldTwice", "UnknownDevices"):
                lines.append(f"{_OFF_PLAN.name}{render_labels(node, ('reason', reason))}{reasons[reason]}\n")
        if self.plugins is not None:
            lines.append(_ALLOCATIONS.header)
            for (resource, outcome), count in sorted(self._outcomes.items()):
                part = render_labels(node, ("resource", resource), ("outcome", outcome))
                lines.append(f"{_ALLOCATIONS.name}{part}{count}\n")
        return "".join(lines).encode()


def find_unhealthy(gpus: Iterable[GPUDevice]) -> frozenset[str]:
    """Return the UUIDs of GPUs that must not be allocated."""
    return frozenset(each.uuid for each in gpus if each.health.state == HealthState.UNHEALTHY)


def open_kubelet(settings: Settings, client: KubeClient) -> KubeletAccess:
    """Return the sources for the node's pods and their devices; reads nothing yet."""
    return KubeletAccess(NodePods(client, settings.node), PodResources(_kubelet_folder(settings) / SOCKET))


def add(services: AgentServices, client: KubeClient, kubelet: KubeletAccess) -> KubeletDevices:
    return KubeletDevices(services, client, kubelet)


def _kubelet_folder(settings: Settings) -> Path:
    return Path(settings.host_root) / settings.kubelet_folder.lstrip("/")
