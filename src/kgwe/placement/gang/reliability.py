"""Moves exposed workloads away from unreliable nodes if that costs them nothing.

A workload is *exposed* if it is large or long: 16 GPU-hours or more. An unknown run time counts as one hour. It is
first planned on all nodes. If the plan uses a node with a reliability (`kgwe.model.health.reliability`) below 0.9, it
is planned again without the nodes below 0.9, then 0.6, then 0.3. The first such plan that is as good is taken: all
pods, no higher level, the same GPU models, a ring as fast. If there is none, the unreliable node is used and the plan
says so. A fleet of reliable nodes is planned only once.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.fleet.node import SpotPolicy
from kgwe.placement.gang.plan import GangPlan
from kgwe.placement.pod.engine import Decision
from kgwe.placement.pod.ranking import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.fleet.snapshot import Snapshot
    from kgwe.placement.gang.plan import Shortfall
    from kgwe.placement.gang.request import GangRequest
    from kgwe.placement.pod.engine import Engine
    from kgwe.placement.refusal import Refusal

    Planned = GangPlan | Shortfall

EXPOSED_GPU_HOURS: Final = 16.0
_UNKNOWN_S: Final = 3600.0
#: the strictest first
CUTOFFS: Final = (0.9, 0.6, 0.3)
# A ring counts as equally fast from this fraction of the GB/s on.
_AS_FAST: Final = 0.99
# These strategies ask for the cheapest node and for any node: reliability does not change their choice.
_UNAFFECTED_STRATEGIES: Final = (Strategy.COST_OPTIMIZED, Strategy.RANDOM)
_MAX_NAMED: Final = 3


def is_exposed(gpus: float, expected_s: float | None) -> bool:
    """Whether a workload is so large or long that a failure is likely; `expected_s` None: the run time is unknown."""
    return gpus * (_UNKNOWN_S if expected_s is None else expected_s) / 3600 >= EXPOSED_GPU_HOURS


def count_missed_cutoffs(snapshot: Snapshot, nodes: NDArray[np.intp]) -> NDArray[np.int64]:
    """Node -> how many of the cutoffs its reliability is below; 0: the node is reliable."""
    below: NDArray[np.bool_] = snapshot.reliability[nodes] < np.array(CUTOFFS)[:, np.newaxis]
    found: NDArray[np.int64] = below.sum(axis=0, dtype=np.int64)
    return found


def mark_exposed(gang: GangRequest, expected_s: float | None) -> GangRequest:
    """The gang, with `exposed` set if it is."""
    gpus = sum(role.replicas * role.request.gpus.count for role in gang.roles)
    return dataclasses.replace(gang, exposed=True) if is_exposed(gpus, expected_s) else gang


def prefer_reliable_plan(
    snapshot: Snapshot, found: GangPlan, again: Callable[[NDArray[np.bool_]], Planned]
) -> GangPlan:
    """The plan of an exposed gang, on more reliable nodes if one there is as good.

    `again` plans the gang without the nodes of a mask.
    """
    used = [snapshot.index[name] for name in found.nodes]
    least = float(snapshot.reliability[used].min(initial=1.0))
    for cutoff in CUTOFFS:
        if least >= cutoff:
            break
        other = again(snapshot.reliability < cutoff)
        if isinstance(other, GangPlan) and _is_as_good_plan(snapshot, other, found):
            return dataclasses.replace(other, reliability_note=f"avoids {_list_unreliable(snapshot, used, cutoff)}")
    if least >= CUTOFFS[0]:
        return found
    words = f"uses {_list_unreliable(snapshot, used, CUTOFFS[0])}: no other place is as good"
    return dataclasses.replace(found, reliability_note=words)


def prefer_reliable_node(
    engine: Engine, request: Request, strategy: Strategy, found: Decision | Refusal, *, expected_s: float | None
) -> tuple[Decision | Refusal, str]:
    """The decision for one pod, or one for an equally good, more reliable node; and words for the message."""
    snapshot = engine.snapshot
    if not isinstance(found, Decision) or strategy in _UNAFFECTED_STRATEGIES:
        return found, ""
    least = float(snapshot.reliability[found.node])
    if least >= CUTOFFS[0] or not is_exposed(request.gpus.count, expected_s):
        return found, ""
    for cutoff in (each for each in CUTOFFS if least < each):
        reliable = snapshot.reliability >= cutoff
        if request.spot is SpotPolicy.AVOID and not snapshot.spot[found.node]:
            reliable &= ~snapshot.spot
        among = np.flatnonzero(reliable)
        other = engine.decide(request, strategy=strategy, candidates=among)
        if isinstance(other, Decision) and _is_as_good_node(snapshot, other, found):
            return other, f", avoids {_list_unreliable(snapshot, [found.node], cutoff)}"
    return found, f", uses {_list_unreliable(snapshot, [found.node], CUTOFFS[0])}: no other place is as good"


def _is_as_good_plan(snapshot: Snapshot, other: GangPlan, found: GangPlan) -> bool:
    """Whether the other plan is as good. Every level tried has a report: as many reports mean an equally low level."""
    return (
        len(other.seats) == len(found.seats)
        and len(other.level_reports) <= len(found.level_reports)
        and other.leaves <= found.leaves
        and other.preferred_met == found.preferred_met
        and other.ring.gb_per_s >= found.ring.gb_per_s * _AS_FAST
        and _list_models(snapshot, other.nodes) == _list_models(snapshot, found.nodes)
    )


def _is_as_good_node(snapshot: Snapshot, other: Decision, found: Decision) -> bool:
    is_as_fast = (other.gb_per_s or 0.0) >= (found.gb_per_s or 0.0) * _AS_FAST
    return is_as_fast and _list_models(snapshot, [other.name]) == _list_models(snapshot, [found.name])


def _list_models(snapshot: Snapshot, names: Iterable[str]) -> set[str]:
    return {snapshot.nodes[snapshot.index[name]].shape.model for name in names}


def _list_unreliable(snapshot: Snapshot, nodes: list[int], cutoff: float) -> str:
    """Names of the nodes below the cutoff, the least reliable first."""
    bad = sorted((float(snapshot.reliability[node]), snapshot.nodes[node].name) for node in nodes)
    bad = [each for each in bad if each[0] < cutoff]
    listed = ", ".join(f"{name} (reliability {score:.2f})" for score, name in bad[:_MAX_NAMED])
    more = f" and {len(bad) - _MAX_NAMED} more" if len(bad) > _MAX_NAMED else ""
    return f"unreliable {'node' if len(bad) == 1 else 'nodes'} {listed}{more}"
