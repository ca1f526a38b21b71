"""Scale-down of one policy: which nodes go, and each step of their way: cordon, drain, confirm, remove.

Every step is a mark on the Node, so another process continues where this one ended. A drain is undone when demand
returns; a removal is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from kgwe import errors
from kgwe.apps.autoscaler import marks, node_pods
from kgwe.cloud.provider import LaunchError
from kgwe.kube.api import resources, timestamp
from kgwe.kube.client.client import DisruptionBudgetRefused
from kgwe.kube.client.eviction import evict_pod
from kgwe.placement.fleet.snapshot import Snapshot
from kgwe.placement.live.scratch import ScratchFleet
from kgwe.placement.planning.plan import Plan
from kgwe.placement.planning.planner import make_plan
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.scaling.lifecycle import Stage
from kgwe.scaling.removal import Keep, NodeUse, RemovalPlan, RemovalSettings, plan_removals

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from kgwe.apps.autoscaler.census import BoughtNode, Census
    from kgwe.apps.autoscaler.demand import Demand
    from kgwe.apps.autoscaler.node_pods import NodePods
    from kgwe.cloud.provider import Provider
    from kgwe.cluster.offline import View
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.autoscalingpolicy import AutoscalingPolicy
    from kgwe.kube.client.client import KubeClient
    from kgwe.model.network.domains import Tree
    from kgwe.placement.planning.ask import Ask

log = structlog.get_logger(__name__)

_S_PER_MIN: Final = 60.0
#: Different gangs that are tried on the empty fleet in a round.
_MOST_TRIED: Final = 16
#: Why a node is drained.
IDLE, UNDERUSED, BROKEN, TO_SPOT = "Idle", "Underused", "GPUsFailed", "ReturnToSpot"

#: Node -> mean use of its GPUs, 0 to 1. A node that is missing is not known.
Uses = Mapping[str, float]
#: Action, pool, nodes and reason of something that was done.
Report = Callable[[str, str, int, str], None]


class Checkpoint(Protocol):
    """Asks pods of a node to save their work, and returns when they have or the time is over."""

    async def __call__(self, node: str, pods: Sequence[core.Pod], /) -> None: ...


@dataclass(frozen=True, slots=True)
class _EmptyFleet:
    """All nodes without pods, and their network."""

    snapshot: Snapshot
    tree: Tree


@dataclass(slots=True)
class IdleClock:
    """Since when nodes are empty. A restart begins to count again, which only keeps nodes for longer."""

    _since: dict[str, float] = field(default_factory=dict)

    def observe(self, names: Sequence[str], busy: frozenset[str], now_s: float) -> dict[str, float]:
        """Return seconds for which each of these nodes is empty."""
        self._since = {name: min(self._since.get(name, now_s), now_s) for name in names if name not in busy}
        return {name: now_s - since for name, since in self._since.items()}


def plan_scale_down(
    policy: AutoscalingPolicy,
    view: View,
    demand: Demand,
    *,
    census: Census,
    pods: NodePods,
    idle_s: Mapping[str, float],
    uses: Uses,
    now_s: float,
) -> RemovalPlan:
    """Return the nodes that can go. What waits and will start without a purchase has its place already."""
    spec = policy.spec
    known = {
        each.node.metadata.name: NodeUse(
            pool=each.offer.pool,
            # A node on which something will start is as good as used.
            idle_min=0.0
            if each.node.metadata.name in demand.expected
            else idle_s.get(each.node.metadata.name, 0.0) / _S_PER_MIN,
            gpu_use=uses.get(each.node.metadata.name),
        )
        for each in census.list_in(Stage.GPU_READY, Stage.IN_USE)
        if each.node is not None
    }
    least = {pool.name: pool.minSize for pool in spec.nodePools}
    # Nodes that go, or may be broken, do not count for the least size of a pool.
    settings = RemovalSettings(
        idle_min=spec.scaleDown.idleSeconds / _S_PER_MIN,
        low_use=spec.scaleDownThreshold,
        consolidate=spec.scaleDown.autoConsolidate,
        least=least,
    )
    running = list(node_pods.list_running(view, pods, spec.scaleDown.minRunSeconds, now_s))
    found = plan_removals(demand.fleet.engine, running, known, node_pods.read_budgets(view), settings)
    kept = {name: why for name, why in found.kept.items() if why[0] is not Keep.NOT_OWNED}
    removals = tuple(each for each in found.removals if each.node not in demand.expected)
    # Nodes of pools that are gone are above any size that is wanted.
    astray = {each.name for each in census.nodes if each.key in census.stray_keys}
    own = [each for each in removals if each.node not in astray]
    allowed = max(len(known.keys() - astray) - spec.minNodes, 0)
    for each in own[allowed:]:
        kept[each.node] = (Keep.LEAST, policy.metadata.name)
    too_many = {each.node for each in own[allowed:]}
    return RemovalPlan(tuple(each for each in removals if each.node not in too_many), kept)


def find_drains_to_undo(census: Census, asks: Sequence[Ask], view: View) -> list[BoughtNode]:
    """Return nodes that are drained without a fault, and on which something that waits would fit."""
    draining = [each for each in census.list_in(Stage.DRAINING) if each.node is not None and not is_broken(each.node)]
    wanted = find_wanted([each.name for each in draining], asks, view)
    return [each for each in draining if each.name in wanted]


def find_wanted(names: Sequence[str], asks: Sequence[Ask], view: View) -> frozenset[str]:
    """Return the nodes on which a pod of something that waits would fit. What fits nowhere keeps no node."""
    requests = {ask.request for ask in asks if ask.gang is None}
    requests |= {role.request for ask in asks if ask.gang is not None for role in ask.gang.roles}
    found = set()
    for name in names:
        if (node := view.fleet.node(name)) is None:
            continue
        fitter = Fitter(Snapshot.from_nodes([replace(node, ready=True, cordoned=False)]))
        if any(fitter.check_nodes(request)[0] == FitStatus.FITS for request in requests):
            found.add(name)
    return frozenset(found)


def without_hopeless(asks: Sequence[Ask], unmet: Collection[str], view: View) -> list[Ask]:
    """Return the asks without gangs for which nothing is bought and that would not fit on the empty fleet either.

    Their single pods may fit on an idle node, but waiting for the others never ends. `unmet`: owners of such asks.
    """
    nodes = [replace(node, ready=True, cordoned=False) for node in view.fleet.snapshot.nodes]
    empty = ScratchFleet(_EmptyFleet(Snapshot.from_nodes(nodes), view.fleet.tree)) if nodes else None
    known: dict[Ask, bool] = {}

    def could_start(ask: Ask) -> bool:
        if ask.owner not in unmet or (ask.gang is None and ask.pods == 1 and not ask.divisible) or empty is None:
            return True
        same = ask.without_identity()
        if same not in known and len(known) >= _MOST_TRIED:
            return True
        if same not in known:
            known[same] = isinstance(make_plan(empty, ask, explain=False), Plan)
        return known[same]

    return [ask for ask in asks if could_start(ask)]


def is_broken(node: core.Node) -> bool:
    """Whether a node is drained because its GPUs have failed."""
    return marks.split_mark(node.metadata.annotations.get(marks.DRAIN, ""))[1] == BROKEN


async def skip_checkpoint(_node: str, _pods: Sequence[core.Pod], /) -> None:
    """Request no checkpoint."""


class Remover:
    """Carries out scale-down, one step per round and node."""

    def __init__(self, client: KubeClient, report: Report, checkpoint: Checkpoint = skip_checkpoint) -> None:
        self._client = client
        self._report = report
        self._checkpoint = checkpoint
        self.refused: dict[str, str] = {}
        """Node -> why a pod on it was not evicted."""
        self.failures: list[str] = []
        """Why the cloud did not take instances back."""

    async def begin_drain(self, each: BoughtNode, reason: str, now_s: float, message: str) -> None:
        """Cordon the node and write why."""
        mark = f"{timestamp.format_time(now_s)} {reason}"
        body = {"metadata": {"annotations": {marks.DRAIN: mark}}, "spec": {"unschedulable": True}}
        await self._client.patch(resources.NODE, each.name, body)
        self._report("Drain", each.offer.pool, 1, f"{each.name}: {message}")

    async def undo_drain(self, each: BoughtNode, why: str) -> None:
        """Open the node again."""
        body = {"metadata": {"annotations": {marks.DRAIN: None}}, "spec": {"unschedulable": None}}
        await self._client.patch(resources.NODE, each.name, body)
        self._report("UndoDrain", each.offer.pool, 1, f"{each.name}: {why}")

    async def continue_drain(
        self, each: BoughtNode, pods: NodePods, policy: AutoscalingPolicy, provider: Provider, now_s: float
    ) -> None:
        """Evict the next pods, or remove the node when none is left."""
        if each.node is None:
            return
        since, reason = marks.split_mark(each.node.metadata.annotations.get(marks.DRAIN, ""))
        held = pods.list_held(each.name)
        if held:
            await self._evict(each.name, held, policy, now_s)
            return
        if each.name in pods.reserved:
            self.refused[each.name] = "a seat on it is reserved"
            return
        self.refused.pop(each.name, None)
        since_s = marks.read_time(since)
        if since_s is None or since_s > now_s:
            # Not readable, or the clock was set back: the grace period begins again.
            mark = f"{timestamp.format_time(now_s)} {reason or IDLE}"
            await self._client.patch(resources.NODE, each.name, {"metadata": {"annotations": {marks.DRAIN: mark}}})
            return
        # Pods that were bound in the last moment are seen within the grace period.
        if now_s - since_s >= policy.spec.scaleDown.gracePeriodSeconds:
            await self.remove(each, provider, reason or IDLE, now_s)

    async def _evict(self, node: str, held: list[core.Pod], policy: AutoscalingPolicy, now_s: float) -> None:
        """Evict the pods of the lowest rank. The API server keeps the disruption budgets."""
        rank = node_pods.find_rank(held[0])
        leaving = []
        for pod in held:
            if node_pods.find_rank(pod) != rank or pod.metadata.deletionTimestamp is not None:
                continue
            if obstacle := node_pods.find_obstacle(pod, policy.spec.scaleDown.minRunSeconds, now_s):
                self.refused[node] = f"pod {pod.metadata.key}: {obstacle}"
                continue
            leaving.append(pod)
        await self._checkpoint(node, leaving)
        for pod in leaving:
            try:
                await evict_pod(self._client, pod)
            except errors.NotFound:
                continue
            except DisruptionBudgetRefused as exc:
                self.refused[node] = f"pod {pod.metadata.key}: {exc}"

    async def remove(self, each: BoughtNode, provider: Provider, reason: str, now_s: float) -> None:
        """Order the removal: first the mark, then the cloud."""
        if each.node is not None:
            body = {"metadata": {"annotations": {marks.REMOVAL: timestamp.format_time(now_s)}}}
            await self._client.patch(resources.NODE, each.name, body)
        if each.instance is not None and not await self.terminate(provider, [each.instance.provider_id]):
            return
        self._report("ScaleDown" if reason != BROKEN else "Replace", each.offer.pool, 1, f"{each.name}: {reason}")

    async def terminate(self, provider: Provider, ids: Sequence[str]) -> bool:
        """Ask the cloud to take instances back; returns whether it accepts. If not, the next round asks again."""
        try:
            await provider.terminate(ids)
        except LaunchError as exc:
            self.failures.append(f"provider {provider.name} does not take {', '.join(ids[:3])} back: {exc}")
            return False
        return True

    async def delete_lost(self, nodes: Sequence[core.Node], is_ready: Callable[[core.Node], bool]) -> None:
        """Delete Node objects whose instance is gone. A node that still reports is left alone."""
        for node in nodes:
            if is_ready(node) and marks.REMOVAL not in node.metadata.annotations:
                continue
            try:
                await self._client.delete(resources.NODE, node.metadata.name, uid=node.metadata.uid)
            except (errors.NotFound, errors.Conflict):
                continue
