"""`kgwe drain`: what happens to the pods of a node or of a leaf if it is emptied. It changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kgwe import errors
from kgwe.apps.autoscaler import marks, node_pods
from kgwe.kube.api import timestamp
from kgwe.placement.disruption.recovery import Failure, plan_recovery
from kgwe.placement.disruption.running import Repair
from kgwe.placement.live.scratch import ScratchFleet
from kgwe.placement.pod.engine import Decision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.cluster.offline import View
    from kgwe.kube.api import core
    from kgwe.scaling.removal import RunningPod


class DrainedPod(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that must leave."""

    pod: str
    node: str
    owner: str
    """The workload, gang or controller that is affected."""
    gpus: int
    moves_to: str = ""
    """The node on which the engine has a place for it; empty: none."""
    obstacle: str = ""
    """Why it is not moved by itself."""
    checkpoint: str = ""
    running_s: float = 0.0


class DrainPlan(msgspec.Struct, frozen=True, rename="camel"):
    """What a drain does."""

    nodes: tuple[str, ...]
    pods: tuple[DrainedPod, ...]
    stranded: int
    """Pods without a place elsewhere."""
    blocked: int
    """Pods that an annotation, a Job without checkpoint or a gang keeps."""
    gangs: tuple[str, ...]
    """Gangs that would lose a member, and stop as a whole."""
    deadline: str = ""
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class DrainQuestion:
    """What is to be drained: a node, or every node of a domain of the network."""

    view: View
    name: str
    deadline_s: float | None
    now_s: float


def find_nodes(view: View, name: str) -> tuple[str, ...]:
    """Return the node of this name, else the nodes of the domain of this name. Permanent if there is neither."""
    fleet = view.fleet
    if name in fleet.snapshot.index:
        return (name,)
    tree = fleet.tree
    for number, level in enumerate(tree.levels):
        if name in level.names:
            domain = level.names.index(name)
            return tuple(sorted(tree.nodes[each] for each in np.flatnonzero(tree.domain_of[number] == domain)))
    levels = ", ".join(level.name for level in tree.levels) or "none"
    raise errors.Permanent(f"no GPU node or network domain is called {name!r}; levels of the network: {levels}")


def plan_drain(asked: DrainQuestion) -> DrainPlan:
    """Return the moves that the engine finds, with everything that stands in the way."""
    view = asked.view
    nodes = find_nodes(view, asked.name)
    pods = node_pods.read_node_pods(view)
    by_key = {pod.metadata.key: pod for held in pods.by_node.values() for pod in held}
    running = [
        each
        for each in node_pods.list_running(view, pods, 0.0, asked.now_s)
        if by_key[each.name].spec.nodeName in nodes and not each.is_daemon
    ]
    places = _Places(view, nodes)
    rows, gangs = [], []
    for each in sorted(running, key=lambda one: (node_pods.find_rank(by_key[one.name]), one.name)):
        pod = by_key[each.name]
        if each.gang and each.gang not in gangs:
            gangs.append(each.gang)
        rows.append(_describe(each, pod, places.find_node(each, pod), asked.now_s))
    left_s = None if asked.deadline_s is None else max(asked.deadline_s - asked.now_s, 0.0)
    return DrainPlan(
        nodes,
        tuple(rows),
        sum(not row.moves_to for row in rows),
        sum(bool(row.obstacle) for row in rows),
        tuple(view.state.owners.title(gang) if "/" not in gang else gang for gang in gangs),
        "" if asked.deadline_s is None else timestamp.format_time(asked.deadline_s),
        left_s,
    )


class _Places:
    """Places on the nodes that stay, each in what those before have left."""

    def __init__(self, view: View, nodes: Sequence[str]) -> None:
        self._view = view
        self._nodes = frozenset(nodes)
        self._fleet = ScratchFleet(view.fleet)
        self._fleet.sync()
        snapshot = self._fleet.snapshot
        stays = snapshot.ready.copy()
        stays[[snapshot.index[name] for name in nodes]] = False
        self._targets = np.flatnonzero(stays)
        #: gang -> member -> its new node; None: what the gang requires is not known
        self._gangs: dict[str, dict[str, str] | None] = {}

    def find_node(self, each: RunningPod, pod: core.Pod) -> str:
        """Return the node on which the pod has a place; empty: none."""
        if each.gang:
            uid = pod.metadata.uid
            seat = self._view.state.seat_of(pod)
            owner, member = (self._view.gangs.owner_of(uid), uid) if seat is None else (seat[0], str(seat[1]))
            if owner not in self._gangs:
                self._gangs[owner] = self._move_gang(owner)
            moves = self._gangs[owner]
            if moves is not None:
                return moves.get(member, "")
        return self._move_pod(each)

    def _move_pod(self, each: RunningPod) -> str:
        found = self._fleet.engine.decide(each.request, candidates=self._targets) if len(self._targets) else None
        if not isinstance(found, Decision):
            return ""
        self._fleet.snapshot.commit(found.grant)
        return self._fleet.snapshot.nodes[found.node].name

    def _move_gang(self, owner: str) -> dict[str, str] | None:
        """Return new nodes for the members that must leave, within what the gang requires of the network."""
        fleet = self._fleet
        try:
            running = self._view.census.find(owner)
        except errors.Permanent:
            return None
        held = {} if running is None else {member.name: member.grant for member in running.members}
        if running is None or not all(grant is None or fleet.snapshot.is_booked(grant) for grant in held.values()):
            return None
        # Its policy says what recovery does by itself. Here the question is whether there is a place.
        running = replace(running, repair=Repair.REPLACE_FAILED)
        moves = plan_recovery(fleet.fitter, fleet.tree, [running], Failure(self._nodes)).moves
        for move in moves:
            if (grant := held[move.member]) is not None:
                fleet.snapshot.release(grant)
        for move in moves:
            fleet.snapshot.commit(move.grant)
        return {move.member: move.node for move in moves}


def _describe(each: RunningPod, pod: core.Pod, target: str, now_s: float) -> DrainedPod:
    obstacle = node_pods.find_obstacle(pod, 0.0, now_s)
    if each.gang:
        obstacle = obstacle or "a pod of a gang: the gang stops as a whole"
    owner = pod.metadata.controller
    started = pod.status.startTime
    return DrainedPod(
        each.name,
        pod.spec.nodeName,
        each.gang or (f"{owner.kind}/{owner.name}" if owner is not None else "none"),
        each.grant.gpu_mask.bit_count(),
        target,
        obstacle,
        pod.metadata.annotations.get(marks.CHECKPOINT, ""),
        max(now_s - timestamp.epoch_seconds(started), 0.0) if started else 0.0,
    )


def format_plan(plan: DrainPlan) -> str:
    """Return the plan for people."""
    lines = [f"Drain of {_join(plan.nodes)}: {len(plan.pods)} {'pod' if len(plan.pods) == 1 else 'pods'} must leave."]
    if plan.deadline:
        lines[0] += f" Deadline {plan.deadline}, in {plan.seconds_left or 0:.0f} s."
    if plan.pods:
        rows = [("POD", "NODE", "OWNER", "GPUS", "MOVES TO", "NOTE")]
        rows += [
            (row.pod, row.node, row.owner, str(row.gpus), row.moves_to or "no place", row.obstacle or "evicted")
            for row in plan.pods
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
    if plan.stranded:
        lines.append(f"{plan.stranded} pods have no place elsewhere: they wait until nodes are added.")
    if plan.gangs:
        lines.append(f"Gangs that stop as a whole: {', '.join(plan.gangs)}.")
    if plan.blocked:
        lines.append(f"{plan.blocked} pods are not moved by themselves; see NOTE.")
    return "\n".join(lines) + "\n"


def _join(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more nodes"  # noqa: PLR2004 - one line
