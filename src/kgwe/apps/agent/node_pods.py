"""The pods of this node, from the API server."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.client.informer import Informer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kgwe.hardware.kubelet.podresources import PodResources
    from kgwe.kube.api import core
    from kgwe.kube.client.client import KubeClient

# The kubelet waits for the reply meanwhile.
_ASK_S: Final = 1.0
# Seconds until a pod that the API server does not know (perhaps a static pod) is requested again.
_ABSENT_S: Final = 30.0
# Seconds without requests after the API server did not respond.
_AWAY_S: Final = 2.0


class PodSource(Protocol):
    """A source of the pods of this node."""

    async def find(self, namespace: str, name: str) -> core.Pod | None:
        """Return a pod that the kubelet knows and `pods` lacks, or shows as terminating."""
        ...

    def pods(self) -> Iterable[core.Pod]:
        """Return the pods from memory, possibly a moment behind."""
        ...


class NodePods:
    """A cache of the pods bound to this node. The kubelet may know a pod earlier; such a pod is requested from the
    API.
    """

    def __init__(self, client: KubeClient, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._absent: dict[str, float] = {}  # key -> time until which it is not requested
        self.informer = Informer(client, resources.POD, field_selector=f"spec.nodeName={node}")

    def pods(self) -> Iterable[core.Pod]:
        return tuple(self.informer.store.values())

    async def find(self, namespace: str, name: str) -> core.Pod | None:
        key = f"{namespace}/{name}"
        now = self._clock()
        self._absent = {each: until for each, until in self._absent.items() if until > now}
        if key in self._absent:
            return None
        try:
            async with asyncio.timeout(_ASK_S):
                return await self._client.get(resources.POD, name, namespace)
        except errors.NotFound:
            self._absent[key] = now + _ABSENT_S
        except (errors.KgweError, TimeoutError):
            # An unknown pod is no error: the choice is made without a plan.
            self._absent[key] = now + _AWAY_S
        return None

    async def run(self) -> None:
        await self.informer.run()


class KubeletAccess(NamedTuple):
    """The sources that several features share."""

    pods: NodePods
    pod_resources: PodResources


def count_requested(pod: core.Pod, resource: str) -> dict[str, int]:
    """Return container -> number of devices, in the order in which the kubelet allocates them."""
    counts = {
        container.name: container.resources.limits.get(resource) or container.resources.requests.get(resource, "0")
        for container in (*pod.spec.initContainers, *pod.spec.containers)
    }
    return {name: int(text) for name, text in counts.items() if text.isdecimal() and int(text)}


def count_peak(pod: core.Pod, resource: str) -> int:
    """Return the maximum of devices at one time: init containers release theirs to the others."""
    early = init_containers(pod)
    most = lasting = 0
    for name, count in count_requested(pod, resource).items():
        most = max(most, lasting + count)
        lasting += 0 if name in early else count
    return most


def init_containers(pod: core.Pod) -> frozenset[str]:
    """Return the containers that end before the others start; the kubelet does not list their devices."""
    return frozenset(each.name for each in pod.spec.initContainers if each.restartPolicy != "Always")


def is_over(pod: core.Pod) -> bool:
    from kgwe.kube.translate import podspec  # noqa: PLC0415 - brings NumPy, which only the device plugin needs

    return podspec.is_terminal(pod)
