"""Builds the feature that delivers checkpoint orders to the pods of this node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kgwe.apps.agent.checkpoint.delivery import Delivery
from kgwe.apps.agent.checkpoint.followed_orders import CheckpointOrders
from kgwe.apps.agent.hooks import Feature, Task
from kgwe.hardware.linux.pod_processes import PodProcesses

if TYPE_CHECKING:
    from kgwe.apps.agent.node_pods import KubeletAccess
    from kgwe.apps.agent.services import AgentServices


def build_checkpoint(services: AgentServices, kubelet: KubeletAccess | None) -> Feature | None:
    """Deliver orders; None without an API server, or without the pods of the node."""
    if services.client is None or kubelet is None:
        return None
    processes = PodProcesses(Path(services.settings.host_root, "proc"))
    followed = CheckpointOrders(services.client, services.node, Delivery(services.client, processes), kubelet.pods.pods)
    return Feature(name="checkpoint", tasks=(Task("checkpoint", followed.run),), on_gpunode=followed.on_gpunode)
