"""Settings of the SchedulerConfig in the form that placement needs, with defaults."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kgwe.cluster.workload.workload import WARP
from kgwe.kube.api.kgwe.schedulerconfig import SchedulerConfigSpec
from kgwe.model.units import amounts, quantity
from kgwe.placement.gang.plan import DomainWeights
from kgwe.placement.pod.ranking import Strategy
from kgwe.placement.pod.score import Weights
from kgwe.placement.refusal import Reason, Refusal
from kgwe.visible_text import escape_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api.kgwe.schedulerconfig import SchedulerConfig
    from kgwe.placement.planning.ask import Ask

_DEFAULTS = SchedulerConfigSpec()


def spec_of(config: SchedulerConfig | None) -> SchedulerConfigSpec:
    return config.spec if config is not None else _DEFAULTS


def with_device_mode(workload: Workload, config: SchedulerConfig | None) -> Workload:
    """The workload with its device mode: its own, else that of the SchedulerConfig."""
    mode = workload.device_mode or spec_of(config).deviceMode
    # A share cannot be claimed.
    claims = mode == "DRA" and workload.resource != amounts.SHARED
    return workload if workload.claims == claims else replace(workload, claims=claims)


def with_priority(workload: Workload, config: SchedulerConfig | None, classes: Mapping[str, int]) -> Workload:
    """The workload with its effective priority.

    Above the limit a workload has at most the value of the PriorityClass it names: deploy/priority.yaml checks that its
    user may use the class, and cannot read the value. Where no classes are known (a reader without that right), any
    class is accepted.
    """
    limit, asked = spec_of(config).maxUnprivilegedPriority, workload.asked_priority
    allowed = limit
    if workload.priority_class:
        allowed = max(limit, classes.get(workload.priority_class, 0) if classes else asked)
    priority = min(asked, allowed)
    return workload if workload.priority == priority else replace(workload, priority=priority)


def missing_class(workload: Workload, classes: Mapping[str, int]) -> str:
    """Why the pods of the workload cannot be created: their PriorityClass does not exist. Empty: it exists.

    Where no classes are known (a reader without that right), nothing is said.
    """
    if not classes or not workload.priority_class or workload.priority_class in classes:
        return ""
    return (
        f"PriorityClass {escape_line(workload.priority_class)} does not exist. Create it, or change priorityClassName."
    )


def priority_note(workload: Workload) -> str:
    """A message about a priority that was limited; empty: it was not."""
    if workload.priority >= workload.asked_priority:
        return ""
    counts = f"spec.priority {workload.asked_priority} counts as {workload.priority}"
    limit = f"maxUnprivilegedPriority of the SchedulerConfig, {_DEFAULTS.maxUnprivilegedPriority} by default"
    if workload.kind is WARP:
        return f"{counts}, the highest priority that is allowed ({limit})"
    return (
        f"{counts}: a priority above the limit ({limit}) needs a PriorityClass of at least that value in"
        " podTemplate.spec.priorityClassName"
    )


def node_weights(config: SchedulerConfig | None) -> Weights:
    spec = spec_of(config)
    weights = spec.nodeWeights
    if spec.enableTopologyAwareness:
        return Weights(weights.topology, weights.resource, weights.balance)
    # Without the wiring the other two share what it had, in their own proportion.
    rest = (weights.resource + weights.balance) or 1
    resource = 100.0 * weights.resource / rest if weights.resource + weights.balance else 100.0
    return Weights(0.0, resource, 100.0 - resource)


def domain_weights(config: SchedulerConfig | None) -> DomainWeights:
    weights = spec_of(config).domainWeights
    return DomainWeights(
        weights.resourceAvailability,
        weights.topologyAlignment,
        weights.domainUtilization,
        weights.historicalPerformance,
    )


def strategy_of(workload: Workload, config: SchedulerConfig | None) -> str:
    """The strategy that places the workload; the configured one is for single pods."""
    return workload.strategy or (str(node_strategy(config)) if workload.pods == 1 else "score")


def node_strategy(config: SchedulerConfig | None) -> Strategy:
    """How a node is chosen for pods that name no strategy."""
    return Strategy(spec_of(config).strategy)


def limit_ask(ask: Ask, config: SchedulerConfig | None) -> Ask:
    """The ask within the limits per leaf that hold for every workload; its own are kept where they are tighter."""
    limits = spec_of(config).topologyConstraints
    nodes, gpus = limits.maxNodesPerLeaf or 0, limits.maxGPUsPerLeaf or 0
    if not nodes and not gpus:
        return ask
    if ask.gang is not None:
        gang = replace(
            ask.gang,
            max_nodes_per_leaf=_tighter_limit(ask.gang.max_nodes_per_leaf, nodes),
            max_gpus_per_leaf=_tighter_limit(ask.gang.max_gpus_per_leaf, gpus),
        )
        return replace(ask, gang=gang)
    near = ask.nearness
    return replace(
        ask,
        nearness=replace(
            near,
            max_nodes_per_leaf=_tighter_limit(near.max_nodes_per_leaf, nodes),
            max_gpus_per_leaf=_tighter_limit(near.max_gpus_per_leaf, gpus),
        ),
    )


def _tighter_limit(one: int, other: int) -> int:
    """The lower of two limits; 0: no limit."""
    return min(one, other) if one and other else one or other


def check_allowed(ask: Ask, config: SchedulerConfig | None) -> Refusal | None:
    """Why the settings do not allow it to be planned; None: they do."""
    if ask.request.gpus.slices and not spec_of(config).enableMIGSupport:
        message = "MIG is disabled. Set enableMIGSupport in the SchedulerConfig, or ask for whole GPUs."
        return Refusal(Reason.INVALID, message, possible=False)
    return None


def plan_timeout_s(config: SchedulerConfig | None, default_s: float) -> float:
    """How long the pods of a plan may take to be bound."""
    return default_s if config is None else quantity.parse_duration(config.spec.schedulingTimeout)


def max_attempts(config: SchedulerConfig | None) -> int | None:
    """How many placements in a row may fail before a workload waits for a change; None: any number."""
    return None if config is None else config.spec.maxSchedulingAttempts
