"""`kgwe drain`: what happens to the pods of a node or of a leaf if it is emptied. It changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kgwe import errors
from kgwe.apps.autoscaler import marks, node_pods
from kgwe.kube.api import timestamp
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
    fleet = ScratchFleet(view.fleet)
    fleet.sync()
    index = fleet.snapshot.index
    stays = fleet.snapshot.ready.copy()
    stays[[index[name] for name in nodes]] = False
    targets = np.flatnonzero(stays)
    by_key = {pod.metadata.key: pod for held in pods.by_node.values() for pod in held}
    running = [
        each
        for each in node_pods.list_running(view, pods, 0.0, asked.now_s)
        if fleet.snapshot.nodes[each.grant.node].name in nodes and not each.is_daemon
    ]
    rows, gangs = [], []
    for each in sorted(running, key=lambda one: (node_pods.find_rank(by_key[one.name]), one.name)):
        pod = by_key[each.name]
        found = fleet.engine.decide(each.request, candidates=targets) if len(targets) else None
        target = ""
        if isinstance(found, Decision):
            fleet.snapshot.commit(found.grant)
            target = fleet.snapshot.nodes[found.node].name
        if each.gang and each.gang not in gangs:
            gangs.append(each.gang)
        rows.append(_describe(each, pod, target, asked.now_s))
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
    lines = [f"Drain of {_join(plan.nodes)}: {len(plan.pods)} pods must leave."]
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
