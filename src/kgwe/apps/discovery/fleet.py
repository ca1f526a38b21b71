"""The GPU nodes of a cluster: the GPUNodes, their age, and optionally the live answers of the agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.apps.discovery import freshness
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta  # noqa: TC001 - msgspec resolves the annotation at run time

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

    from kgwe.agentapi.client import Access
    from kgwe.apps.discovery.freshness import Seen
    from kgwe.apps.discovery.live import Answer
    from kgwe.kube.api.kgwe.gpunode import GPUNodeStatus
    from kgwe.kube.client.client import KubeClient


class Address(msgspec.Struct, frozen=True, gc=False):
    type: str
    address: str


class _Status(msgspec.Struct, frozen=True, gc=False):
    addresses: tuple[Address, ...] = ()


class AddressedNode(msgspec.Struct, frozen=True, gc=False):
    """The addresses of a Node."""

    metadata: ObjectMeta
    status: _Status = _Status()


ADDRESSED_NODE: Final = resources.Resource("", "v1", "nodes", "Node", namespaced=False, type=AddressedNode)


@dataclass(frozen=True, slots=True)
class Row:
    """One node of the list."""

    seen: Seen
    answer: Answer | None = None
    """The live answer of its agent; None if the agent was not queried."""

    @property
    def name(self) -> str:
        return self.seen.node.metadata.name

    @property
    def status(self) -> GPUNodeStatus:
        """Return the live status if there is one, else the published one."""
        if self.answer is not None and self.answer.status is not None:
            return self.answer.status
        return self.seen.node.status

    @property
    def is_good(self) -> bool:
        if self.answer is not None and self.seen.freshness is not freshness.Freshness.SIMULATED:
            return self.answer.status is not None
        return self.seen.is_good

    @property
    def freshness(self) -> str:
        if self.answer is not None:
            return "Live" if self.answer.status is not None else "NoAnswer"
        return str(self.seen.freshness)

    @property
    def why(self) -> str:
        return self.answer.problem if self.answer is not None else self.seen.reason

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "freshness": self.freshness,
            "good": self.is_good,
            "age_s": self.seen.age_s,
            "why": self.why,
            "gpus": self.status.gpuCount,
            "healthy": self.status.healthyGPUs,
            "model": self.status.model,
        }


async def rows(
    client: KubeClient, now: dt.datetime, stale_after_s: float, *, access: Access | None = None, port: int = 50052
) -> list[Row]:
    """Return a row per GPUNode; with `access` the agents are queried too."""
    seen = freshness.judge_all(await client.list(resources.GPU_NODE), now, stale_after_s)
    if access is None:
        return [Row(each) for each in seen]
    from kgwe.apps.discovery.live import LiveFleet  # noqa: PLC0415 - gRPC only where agents are asked

    asked = {each.node.metadata.name for each in seen if each.freshness is not freshness.Freshness.SIMULATED}
    where = addresses(await client.list(ADDRESSED_NODE), port)
    async with LiveFleet(access) as live:
        answers = await live.ask({name: address for name, address in where.items() if name in asked})
    return [Row(each, answers.get(each.node.metadata.name)) for each in seen]


def addresses(nodes: Iterable[AddressedNode], port: int) -> dict[str, str]:
    """Return the address of each node's agent, which is the address of the node."""
    found = {}
    for node in nodes:
        internal = next((each.address for each in node.status.addresses if each.type == "InternalIP"), "")
        if internal:
            found[node.metadata.name] = f"[{internal}]:{port}" if ":" in internal else f"{internal}:{port}"
    return found
