"""The times at which a watch showed pods bound and running, and nodes lost, by the clock of this machine."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Self

from kgwe.kube.api import resources
from kgwe.kube.client.informer import Change, Informer, wait_synced
from kgwe.local.fleet import apply

if TYPE_CHECKING:
    from kgwe.kube.api import core
    from kgwe.kube.client.client import KubeClient


class Sightings:
    """Watches the pods of one namespace and all nodes."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._pods = Informer(client, resources.POD, namespace=namespace)
        self._nodes = Informer(client, resources.NODE)
        self._running: dict[str, float] = {}
        self._bound: dict[str, float] = {}
        self._lost: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._pods.on_change(self._on_pod)
        self._nodes.on_change(self._on_node)
        self._tasks = [asyncio.create_task(informer.run()) for informer in (self._pods, self._nodes)]
        await wait_synced(self._pods, self._nodes)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def pods_of(self, prefix: str) -> dict[str, str]:
        """Return pod -> node for pods that run on a node that is not lost."""
        return {
            pod.metadata.name: pod.spec.nodeName
            for pod in self._pods.store.values()
            if pod.metadata.name.startswith(f"{prefix}-") and _is_running(pod) and pod.spec.nodeName not in self._lost
        }

    def running_at(self, prefix: str) -> float:
        """Return the time at which the last of these pods began to run."""
        return max(self._running[name] for name in self.pods_of(prefix))

    def bound_at(self, name: str) -> float:
        """Return the time of the binding; 0 if the pod is not bound."""
        return self._bound.get(name, 0.0)

    def lost_at(self, node: str) -> float:
        return self._lost[node]

    def is_ready(self, node: str) -> bool:
        return node not in self._lost

    def _on_pod(self, change: Change[core.Pod]) -> None:
        pod = change.new
        if pod is None:
            return
        name, now = pod.metadata.name, time.time()
        if pod.spec.nodeName:
            self._bound.setdefault(name, now)
        if _is_running(pod):
            self._running.setdefault(name, now)

    def _on_node(self, change: Change[core.Node]) -> None:
        node = change.new
        if node is None:
            return
        if apply.is_ready(node):
            self._lost.pop(node.metadata.name, None)
        else:
            self._lost.setdefault(node.metadata.name, time.time())


def _is_running(pod: core.Pod) -> bool:
    return pod.status.phase == "Running" and pod.metadata.deletionTimestamp is None
