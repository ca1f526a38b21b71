"""Builds the kubelet features: the devices that pods hold, and the device plugins."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe.apps.agent.devices.deviceplugin import FOLDER, DevicePlugins
from kgwe.apps.agent.devices.holdings import PodHoldings
from kgwe.apps.agent.hooks import Feature, Task
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
    from collections.abc import Callable, Iterable

    from kgwe.apps.agent.devices.allocator import Outcome
    from kgwe.apps.agent.services import AgentServices
    from kgwe.apps.agent.settings import Settings
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUDevice, GPUNodeSpec, GPUNodeStatus
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


# --- what pods hold -------------------------------------------------------------------------------------


def build_holdings(services: AgentServices, client: KubeClient, kubelet: KubeletAccess) -> Feature:
    """Report the devices that pods hold."""
    prefixes = dict.fromkeys((f"{advertised.DEFAULT_PREFIX}/", f"{services.settings.device_plugin_prefix}/"))
    events = EventRecorder(client, controller="kgwe-agent", instance=services.node)

    def record_event(pod: core.Pod, difference: Difference) -> None:
        said = (difference.reason, difference.message, "Starting")
        events.record(Event(resources.POD, pod.metadata, "Warning", *said))

    holdings = PodHoldings(
        kubelet.pod_resources,
        kubelet.pods,
        prefixes=tuple(prefixes),
        on_news=services.report,
        on_difference=record_event,
    )

    def on_pod(change: Change[core.Pod]) -> None:
        if change.old is None or change.new is None or change.old.status.phase != change.new.status.phase:
            holdings.request_refresh()

    return Feature(
        name="holdings",
        tasks=(Task("holdings", holdings.run), Task("events of pods", events.run)),
        on_machine=holdings.set_machine,
        amend_status=holdings.amend_status,
        condition=holdings.condition,
        on_pod=on_pod,
        on_allocation=holdings.request_refresh,
        render=lambda: _render_holdings(holdings, services.node),
    )


def _render_holdings(holdings: PodHoldings, node: str) -> bytes:
    """Return the /metrics lines about pods; none while the kubelet's list is not read."""
    if holdings.problem:
        return b""
    label = ("node", node)
    reasons = collections.Counter(each.reason for each in holdings.differences)
    lines = [_HELD.header, f"{_HELD.name}{render_labels(label)}{len(holdings.held)}\n", _OFF_PLAN.header]
    lines += [
        f"{_OFF_PLAN.name}{render_labels(label, ('reason', reason))}{reasons[reason]}\n"
        for reason in ("OtherDevices", "HeldTwice", "UnknownDevices")
    ]
    return "".join(lines).encode()


# --- device plugins -------------------------------------------------------------------------------------

# Reports without a GPUNode after which devices are advertised as the settings say: the API server may be down.
_UNREAD_MOST: Final = 3


class DevicePluginFeature:
    """Advertises the devices of healthy GPUs, and counts their allocations."""

    def __init__(
        self,
        services: AgentServices,
        kubelet: KubeletAccess,
        *,
        withheld_devices: Callable[[], frozenset[str]],
        on_allocation: Callable[[], None],
    ) -> None:
        # Imported here, because it loads NumPy, a fifth of the agent.
        from kgwe.apps.agent.devices.allocator import AccessMethod, ContainerAccess, DeviceAllocator  # noqa: PLC0415

        settings = services.settings
        self._services = services
        self._withheld_devices = withheld_devices
        self._on_allocation = on_allocation
        self._unread = 0
        self._outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
        access = ContainerAccess(tuple(AccessMethod(each) for each in settings.device_plugin_means), settings.cdi_kind)
        self._allocator = DeviceAllocator(
            kubelet.pods,
            kubelet.pod_resources if settings.enable_pod_resources else None,
            access=access,
            on_outcome=self._on_outcome,
        )
        self._plugins = DevicePlugins(_kubelet_folder(settings) / FOLDER, self._allocator)

    def to_feature(self) -> Feature:
        return Feature(
            name="device plugin",
            tasks=(Task("device plugin", self._plugins.run),),
            amend_status=self._advertise,
            render=self._render,
        )

    def _advertise(self, status: GPUNodeStatus) -> GPUNodeStatus:
        """Advertise the devices of healthy GPUs.

        While the driver is unavailable the advertised devices stay, because running pods continue.
        """
        services, settings = self._services, self._services.settings
        machine = services.state.machine
        if machine is None or not services.supervisor.state.is_ready:
            return status
        spec = services.read_spec()
        if spec is None and not settings.device_plugin_replicas and self._unread < _UNREAD_MOST:
            # A GPU that is shared must not be offered as a whole one for a moment.
            self._unread += 1
            return status
        closed = find_unhealthy(status.gpus) | self._withheld_devices()
        offers = advertised.list_advertised(
            machine, out_of_service=closed, prefix=settings.device_plugin_prefix, pieces=self._find_pieces(spec)
        )
        self._allocator.set_devices(offers, gpunode_status.build_wiring(machine, status))
        self._plugins.advertise(offers)
        return status

    def _find_pieces(self, spec: GPUNodeSpec | None) -> int:
        """Return the shares of each GPU: as the GPUNode says, else as the settings say."""
        if spec is None or spec.sharing is None:
            return self._services.settings.device_plugin_replicas
        return spec.sharing.replicas

    def _on_outcome(self, resource: str, outcome: Outcome) -> None:
        self._outcomes[resource, outcome] += 1
        self._on_allocation()

    def _render(self) -> bytes:
        """Return the /metrics lines about allocations."""
        lines = [_ALLOCATIONS.header]
        for (resource, outcome), count in sorted(self._outcomes.items()):
            part = render_labels(("node", self._services.node), ("resource", resource), ("outcome", outcome))
            lines.append(f"{_ALLOCATIONS.name}{part}{count}\n")
        return "".join(lines).encode()


def build_device_plugin(
    services: AgentServices,
    kubelet: KubeletAccess,
    *,
    withheld_devices: Callable[[], frozenset[str]] = frozenset,
    on_allocation: Callable[[], None] = lambda: None,
) -> Feature:
    """Run the device plugins. Devices in `withheld_devices` are not advertised."""
    plugin = DevicePluginFeature(services, kubelet, withheld_devices=withheld_devices, on_allocation=on_allocation)
    return plugin.to_feature()


def find_unhealthy(gpus: Iterable[GPUDevice]) -> frozenset[str]:
    """Return the UUIDs of GPUs that must not be allocated."""
    return frozenset(each.uuid for each in gpus if each.health.state == HealthState.UNHEALTHY)


def open_kubelet(settings: Settings, client: KubeClient) -> KubeletAccess:
    """Return the sources for the node's pods and their devices; reads nothing yet."""
    return KubeletAccess(NodePods(client, settings.node), PodResources(_kubelet_folder(settings) / SOCKET))


def _kubelet_folder(settings: Settings) -> Path:
    return Path(settings.host_root) / settings.kubelet_folder.lstrip("/")
