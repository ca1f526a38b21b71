"""What a user may see, as one value: users with equal rights get equal replies, and share one stream."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kgwe.httpapi.authorization import Readable, Right, find_readable
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kgwe.httpapi.authentication import User
    from kgwe.httpapi.authorization import Authorizer
    from kgwe.kube.api.resources import Resource

NOTHING: Final = Readable(everything=False)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which objects a user may list."""

    nodes: bool = False
    gpu_nodes: bool = False
    policies: bool = False
    pods: Readable = NOTHING
    workloads: Readable = NOTHING
    warp_workloads: Readable = NOTHING
    jobs: Readable = NOTHING
    budgets: Readable = NOTHING

    @property
    def sees_fleet(self) -> bool:
        """Whether use and free capacity of the whole fleet may be shown: all nodes and all pods."""
        return self.nodes and self.gpu_nodes and self.pods.everything

    @property
    def sees_cluster(self) -> bool:
        """Whether answers may be planned on the whole cluster: they name workloads of all namespaces."""
        return self.sees_fleet and self.workloads.everything and self.warp_workloads.everything and self.jobs.everything

    def of_workloads(self, group: str) -> Readable:
        """The readable namespaces of the GPUWorkloads of an API group."""
        return self.workloads if group == resources.GPU_WORKLOAD.group else self.warp_workloads

    def covers_work(self, kind: str, group: str, namespace: str) -> bool:
        """Whether a workload, or a pod that no workload owns, may be shown and counted."""
        if kind == "Pod":
            return self.pods.covers(namespace)
        return self.of_workloads(group).covers(namespace)


EVERYTHING: Final = Scope(True, True, True, *(Readable(everything=True),) * 5)  # noqa: FBT003 - all rights


class ScopeReader:
    """Asks what a user may list."""

    def __init__(self, authorizer: Authorizer, namespaces: Callable[[], Iterable[str]]) -> None:
        """`namespaces`: all namespaces that objects are in."""
        self._authorizer = authorizer
        self._namespaces = namespaces

    async def read(self, user: User) -> Scope:
        """Return the scope of a user, from answers that are some seconds old at most."""
        names = sorted(set(self._namespaces()))
        nodes, gpu_nodes, policies = await asyncio.gather(
            *(self._may(user, kind) for kind in (resources.NODE, resources.GPU_NODE, resources.AUTOSCALING_POLICY))
        )
        kinds = (
            resources.POD,
            resources.GPU_WORKLOAD,
            resources.WARP_GPU_WORKLOAD,
            resources.JOB,
            resources.GPU_BUDGET,
        )
        readable = await asyncio.gather(
            *(find_readable(self._authorizer, user, _make_right(kind), names) for kind in kinds)
        )
        return Scope(nodes, gpu_nodes, policies, *readable)

    async def _may(self, user: User, kind: Resource[Any]) -> bool:
        return await self._authorizer.may(user, _make_right(kind))


def _make_right(kind: Resource[Any]) -> Right:
    return Right("list", kind.group, kind.plural)
