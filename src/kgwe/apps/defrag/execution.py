"""Executes the moves of a proposal: evicts the pods one after the other, and waits for the waiting workload.

A taint keeps new pods off the nodes that the workload needs and off the nodes that still have pods to move. It is
removed after the moves, also on failure. The scheduler places a moved pod like any other.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe import errors
from kgwe.apps.defrag.proposal import Proposal, has_consent, is_recreated
from kgwe.kube.api import resources, timestamp
from kgwe.kube.client.client import DisruptionBudgetRefused
from kgwe.kube.client.eviction import evict_pod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kgwe.apps.defrag.proposal import Move
    from kgwe.cluster.checkpoint.caller import Caller
    from kgwe.kube.api import core
    from kgwe.kube.client.client import KubeClient

TAINT: Final = "kgwe.nvidia.io/defrag"
_POLL_S: Final = 0.5
_S_PER_HOUR: Final = 3600.0
_STARTED: Final = ("Running", "Succeeded")
_CONFLICTS: Final = 5


class Moved(msgspec.Struct, frozen=True, rename="camel"):
    """One moved pod, with its actual loss."""

    pod: str
    source: str
    #: the replacement pod, and its node
    replacement: str
    node: str
    lost_gpu_hours: float
    restart_gpu_hours: float


class Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """The cost of the moves, and the predicted cost."""

    waiting: str
    started: bool
    moved: tuple[Moved, ...]
    predicted_lost_gpu_hours: float
    lost_gpu_hours: float
    predicted_restart_gpu_hours: float
    restart_gpu_hours: float
    #: seconds from the first eviction until the waiting workload had started
    took_s: float


def order_moves(moves: tuple[Move, ...]) -> list[Move]:
    """Return the moves in an order in which each has room: first those to nodes that no other pod must leave."""
    left, ordered = list(moves), []
    while left:
        sources = {move.source for move in left}
        ready = [move for move in left if move.target not in sources - {move.source}] or left[:1]
        ordered += ready
        left = [move for move in left if move not in ready]
    return ordered


@dataclass
class Execution:
    """The execution of one proposal."""

    client: KubeClient
    proposal: Proposal
    timeout_s: float = 300.0
    tell: Callable[[str], None] = lambda _: None
    checkpoints: Caller | None = None
    """Asks pods for a checkpoint before they move."""
    checkpoint_s: float = 30.0
    _tainted: set[str] = field(default_factory=set)

    async def run(self) -> Outcome:
        """Move the pods and wait for the waiting workload.

        Raise Permanent, without changes, if a pod does not consent or has changed since the plan.
        """
        moves = order_moves(self.proposal.moves)
        pods = {move.uid: await self._movable_pod(move) for move in moves}
        began = time.monotonic()
        moved = []
        try:
            for number, move in enumerate(moves):
                await self._taint(set(self.proposal.nodes) | {each.source for each in moves[number:]}, move.target)
                self.tell(f"Moving {move.namespace}/{move.pod} off {move.source}")
                moved.append(await self._move(move, pods[move.uid]))
        finally:
            await self._taint(set())
        self.tell(f"Waiting for {self.proposal.waiting}")
        is_started = await self._wait(self._has_started)
        return Outcome(
            self.proposal.waiting,
            is_started,
            tuple(moved),
            self.proposal.lost_gpu_hours,
            round(sum(each.lost_gpu_hours for each in moved), 4),
            self.proposal.restart_gpu_hours,
            round(sum(each.restart_gpu_hours for each in moved), 4),
            round(time.monotonic() - began, 1),
        )

    async def _movable_pod(self, move: Move) -> core.Pod:
        pod = await self.client.get(resources.POD, move.pod, move.namespace)
        if pod.metadata.uid != move.uid or pod.spec.nodeName != move.source:
            raise errors.Permanent(f"pod {pod.metadata.key} has changed since the plan; plan again")
        if not has_consent(pod) or not is_recreated(pod):
            raise errors.Permanent(f"pod {pod.metadata.key} does not consent to be moved; nothing was changed")
        return pod

    # --- one pod ----------------------------------------------------------------------------------------

    async def _move(self, move: Move, pod: core.Pod) -> Moved:
        siblings = await self._siblings(pod)
        before = {each.metadata.uid for each in siblings}
        if self.checkpoints is not None:
            # All ranks of a Job together: one alone cannot checkpoint.
            cause, reason = f"defrag/{pod.metadata.uid}", f"{pod.metadata.key} is moved"
            await self.checkpoints.call(cause, siblings, seconds=self.checkpoint_s, reason=reason)
        evicted_s = await self._evict(pod)
        found: core.Pod | None = None

        async def is_replaced() -> bool:
            nonlocal found
            siblings = await self._siblings(pod)
            new = [each for each in siblings if each.metadata.uid not in before and each.status.phase in _STARTED]
            found = new[0] if new else None
            return found is not None and pod.metadata.uid not in {each.metadata.uid for each in siblings}

        if not await self._wait(is_replaced) or found is None:
            raise errors.Transient(
                f"pod {pod.metadata.key} was evicted, but no replacement runs after {self.timeout_s:g} s.\n"
                "The remaining moves are cancelled. Check the pods of its controller."
            )
        started_s = timestamp.epoch_seconds(pod.status.startTime) if pod.status.startTime else evicted_s
        return Moved(
            pod.metadata.key,
            move.source,
            found.metadata.key,
            found.spec.nodeName,
            move.gpus * max(0.0, evicted_s - started_s) / _S_PER_HOUR,
            move.gpus * max(0.0, time.time() - evicted_s) / _S_PER_HOUR,
        )

    async def _evict(self, pod: core.Pod) -> float:
        """Evict a pod and return the time at which the API server accepted it. Retry while a disruption budget
        refuses.
        """
        refused = ""

        async def is_accepted() -> bool:
            nonlocal refused
            try:
                await evict_pod(self.client, pod)
            except DisruptionBudgetRefused as exc:
                refused = str(exc)
                return False
            except errors.NotFound:
                pass  # the pod has ended already
            return True

        if not await self._wait(is_accepted):
            raise errors.Transient(f"pod {pod.metadata.key} cannot be evicted: {refused}")
        return time.time()

    async def _siblings(self, pod: core.Pod) -> list[core.Pod]:
        """Return all pods of the same controller."""
        controller = pod.metadata.controller
        pods = await self.client.list(resources.POD, pod.metadata.namespace)
        return [
            each
            for each in pods
            if each.metadata.controller is not None
            and controller is not None
            and each.metadata.controller.uid == controller.uid
        ]

    # --- waiting workload -------------------------------------------------------------------------------

    async def _has_started(self) -> bool:
        if self.proposal.workload:
            group, namespace, name = self.proposal.workload.split("/")
            kinds: tuple[Any, ...] = (resources.GPU_WORKLOAD, resources.WARP_GPU_WORKLOAD)
            (kind,) = (each for each in kinds if each.group == group)
            workload = await self.client.get(kind, name, namespace)
            return workload.status.phase in _STARTED
        for key in self.proposal.waiting_pods:
            namespace, _, name = key.partition("/")
            pod = await self.client.get(resources.POD, name, namespace)
            if pod.status.phase not in _STARTED:
                return False
        return True

    # --- taints and waiting -----------------------------------------------------------------------------

    async def _taint(self, nodes: set[str], target: str = "") -> None:
        """Taint exactly these nodes, except a spare target of the current move."""
        wanted = nodes - ({target} - set(self.proposal.nodes))
        for name in sorted(self._tainted - wanted):
            await set_taint(self.client, name, closed=False)
        self._tainted &= wanted
        for name in sorted(wanted - self._tainted):
            await set_taint(self.client, name, closed=True)
            self._tainted.add(name)

    async def _wait(self, done: Callable[[], Awaitable[bool]]) -> bool:
        deadline = time.monotonic() + self.timeout_s
        while not await done():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True


async def set_taint(client: KubeClient, name: str, *, closed: bool) -> None:
    """Add or remove the taint of a node; other taints stay."""
    for attempt in range(_CONFLICTS):
        node = await client.get(resources.NODE, name)
        taints = [taint for taint in node.spec.taints if taint.key != TAINT]
        body: list[dict[str, str]] = [msgspec.to_builtins(taint) for taint in taints]
        if closed:
            body.append({"key": TAINT, "effect": "NoSchedule"})
        elif len(taints) == len(node.spec.taints):
            return
        change = {"metadata": {"resourceVersion": node.metadata.resourceVersion}, "spec": {"taints": body}}
        try:
            await client.patch(resources.NODE, name, change)
        except errors.Conflict:
            if attempt == _CONFLICTS - 1:
                raise
        else:
            return


async def remove_leftovers(client: KubeClient) -> list[str]:
    """Remove the taints that an interrupted run left; return the names of the nodes."""
    left = [
        node.metadata.name
        for node in await client.list(resources.NODE)
        if any(taint.key == TAINT for taint in node.spec.taints)
    ]
    for name in left:
        await set_taint(client, name, closed=False)
    return left


def to_text(outcome: Outcome) -> str:
    lines = [f"{each.pod} {each.source} -> {each.node} as {each.replacement}" for each in outcome.moved]
    ended = "has started" if outcome.started else "has not started yet; see kgwe explain"
    lines += [
        f"{outcome.waiting} {ended} ({outcome.took_s:g} s)",
        f"Lost work: {outcome.lost_gpu_hours:g} GPU-hours, predicted {outcome.predicted_lost_gpu_hours:g}",
        f"Restarts: {outcome.restart_gpu_hours:g} GPU-hours, predicted {outcome.predicted_restart_gpu_hours:g}",
    ]
    return "\n".join(lines) + "\n"
