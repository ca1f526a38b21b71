"""The kubelet's side of the agent: what pods hold, and the device plugins, hung into it."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe.apps.agent.devices.deviceplugin import FOLDER, DevicePlugins
from kgwe.apps.agent.devices.holdings import PodHoldings
from kgwe.apps.agent.devices.node_pods import NodePods
from kgwe.apps.agent.metrics.exporter import labels
from kgwe.apps.agent.metrics.families import counter, gauge
from kgwe.apps.agent.status import gpunode_status
from kgwe.hardware.kubelet.podresources import SOCKET, PodResources
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpunode import HealthState
from kgwe.kube.client.events import Event, EventRecorder
from kgwe.model.devices import advertised

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.apps.agent.devices.allocator import DeviceAllocator, Outcome
    from kgwe.apps.agent.devices.node_pods import PodSource
    from kgwe.apps.agent.main import Agent
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUDevice, GPUNodeStatus
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Change
    from kgwe.model.devices.holdings import Difference

_HELD: Final = gauge("kgwe_pods_holding_devices", "Pods that hold GPUs or slices of the node, as its kubelet says.")
_OFF_PLAN: Final = gauge("kgwe_pods_off_plan", "Pods that hold other devices than were planned for them, by reason.")
_ALLOCATIONS: Final = counter(
    "kgwe_device_allocations_total", "Containers that KGWE's device plugin was asked to give devices to, by outcome."
)


class KubeletDevices:
    """Wires them together for one agent."""

    def __init__(self, agent: Agent, client: KubeClient) -> None:
        settings = agent.settings
        self._agent = agent
        self._prefix = settings.device_plugin_prefix
        self._pieces = settings.device_plugin_replicas
        folder = Path(settings.host_root) / settings.kubelet_folder.lstrip("/")
        self.pods = NodePods(client, agent.node)
        self.truth = PodResources(folder / SOCKET)
        self.holdings: PodHoldings | None = None
        self.plugins: DevicePlugins | None = None
        self._desk: DeviceAllocator | None = None
        self._outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
        agent.parts.add("pods", self.pods.run)
        if settings.enable_pod_resources:
            self._add_holdings(client)
        if settings.enable_device_plugin:
            self._add_plugins(folder / FOLDER)

    # --- what pods hold ---------------------------------------------------------------------------------

    def _add_holdings(self, client: KubeClient) -> None:
        agent = self._agent
        prefixes = dict.fromkeys((f"{advertised.DEFAULT_PREFIX}/", f"{self._prefix}/"))
        holdings = self.holdings = PodHoldings(self.truth, self.pods, prefixes=tuple(prefixes))
        events = EventRecorder(client, controller="kgwe-agent", instance=agent.node)

        def tell(pod: core.Pod, difference: Difference) -> None:
            said = (difference.reason, difference.message, "Starting")
            events.record(Event(resources.POD, pod.metadata, "Warning", *said))

        def on_pod(change: Change[core.Pod]) -> None:
            if change.old is None or change.new is None or change.old.status.phase != change.new.status.phase:
                holdings.request_refresh()

        holdings.on_difference = tell
        holdings.on_news = agent.tell
        self.pods.informer.on_change(on_pod)
        agent.on_machine.append(holdings.set_machine)
        agent.amend.append(holdings.amend_status)
        agent.conditions.append(holdings.condition)
        agent.parts.add("holdings", holdings.run)
        agent.parts.add("events of pods", events.run)

    # --- device plugins ---------------------------------------------------------------------------------

    def _add_plugins(self, folder: Path) -> None:
        from kgwe.apps.agent.devices.allocator import AccessMethod, ContainerAccess, DeviceAllocator  # noqa: PLC0415 - brings NumPy: a fifth of the agent

        settings = self._agent.settings
        wording = ContainerAccess(tuple(AccessMethod(each) for each in settings.device_plugin_means), settings.cdi_kind)
        pods: PodSource = self.pods
        self._desk = DeviceAllocator(pods, self.truth if settings.enable_pod_resources else None, wording=wording)
        self._desk.on_outcome = self._on_outcome
        self.plugins = DevicePlugins(folder, self._desk)
        # Last of all that have a say in it: what is reported is what is offered.
        self._agent.amend.append(self._offer)
        self._agent.parts.add("device plugin", self.plugins.run)

    def _offer(self, status: GPUNodeStatus) -> GPUNodeStatus:
        """Offer what the report says is fit. While the driver is away what was offered stands: running work goes on."""
        machine = self._agent.machine
        if machine is not None and self._desk is not None and self.plugins is not None and self._agent.driver.is_ready:
            closed = find_unhealthy(status.gpus) | self._agent.withheld()
            offers = advertised.offers(machine, out_of_service=closed, prefix=self._prefix, pieces=self._pieces)
            self._desk.set_devices(offers, gpunode_status.wiring(machine, status))
            self.plugins.advertise(offers)
        return status

    def _on_outcome(self, resource: str, outcome: Outcome) -> None:
        self._outcomes[resource, outcome] += 1
        if self.holdings is not None:
            self.holdings.request_refresh()

    # --- metrics ----------------------------------------------------------------------------------------

    def render(self) -> bytes:
        """For whoever scrapes the agent."""
        node = ("node", self._agent.node)
        lines: list[str] = []
        if self.holdings is not None and not self.holdings.problem:
            reasons = collections.Counter(each.reason for each in self.holdings.differences)
            lines += [_HELD.header, f"{_HELD.name}{labels(node)}{len(self.holdings.held)}\n", _OFF_PLAN.header]
            for reason in ("OtherDevices", "HeldTwice", "UnknownDevices"):
                lines.append(f"{_OFF_PLAN.name}{labels(node, ('reason', reason))}{reasons[reason]}\n")
        if self.plugins is not None:
            lines.append(_ALLOCATIONS.header)
            for (resource, outcome), count in sorted(self._outcomes.items()):
                part = labels(node, ("resource", resource), ("outcome", outcome))
                lines.append(f"{_ALLOCATIONS.name}{part}{count}\n")
        return "".join(lines).encode()


def find_unhealthy(gpus: Iterable[GPUDevice]) -> frozenset[str]:
    """Cards that may not be given work."""
    return frozenset(each.uuid for each in gpus if each.health.state == HealthState.UNHEALTHY)


def add(agent: Agent) -> KubeletDevices | None:
    """Where the settings ask for it; without an API server nobody says what was planned."""
    settings = agent.settings
    if agent.client is None or not (settings.enable_pod_resources or settings.enable_device_plugin):
        return None
    return KubeletDevices(agent, agent.client)
