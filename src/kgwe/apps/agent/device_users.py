"""The devices that pods use, for the MIG feature: from the kubelet, else from the pods of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.apps.agent.hooks import Task

if TYPE_CHECKING:
    from kgwe.apps.agent.mig.reconfigurer import DeviceUsers
    from kgwe.apps.agent.node_pods import KubeletAccess
    from kgwe.apps.agent.services import AgentServices
    from kgwe.kube.client.client import KubeClient


def find_device_users(
    services: AgentServices, kubelet: KubeletAccess | None
) -> tuple[DeviceUsers | None, tuple[Task, ...]]:
    """Return the source of devices in use, and the tasks that it needs. None: only processes show usage."""
    if services.client is None:
        return None, ()
    if services.settings.enable_pod_resources:
        return _list_from_kubelet(services, kubelet), ()
    return _list_from_pods(services, services.client)


def _list_from_pods(services: AgentServices, client: KubeClient) -> tuple[DeviceUsers, tuple[Task, ...]]:
    from kgwe.apps.agent.devices.claims import ClaimedDevices  # noqa: PLC0415 - only without the kubelet's list
    from kgwe.apps.agent.node_pods import NodePods  # noqa: PLC0415

    pods = NodePods(client, services.node)
    return ClaimedDevices(services.supervisor, pods.informer), (Task("pods that may have slices", pods.run),)


def _list_from_kubelet(services: AgentServices, kubelet: KubeletAccess | None) -> DeviceUsers:
    async def list_held() -> frozenset[str] | None:
        if kubelet is None:
            return None
        from kgwe.apps.agent.metrics import node_context  # noqa: PLC0415 - only with a kubelet

        try:
            listed = await kubelet.pod_resources.list()
            return frozenset(node_context.map_holders(listed, services.state.machine))
        except errors.KgweError:
            return None

    return list_held
