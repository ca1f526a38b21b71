"""The refusal: every planner answers with this type when a request is not placed.

Like kube-scheduler's `Status` it has a code that conditions and alerts match on, counts, and a message for people.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Reason(enum.StrEnum):
    """Why a request is not placed. Most values are condition reasons: users and alerts match on them."""

    NO_GPU_NODES = "NoGPUNodes"
    NO_MATCHING_NODE = "NoMatchingNode"
    TOO_LARGE = "TooLarge"
    NOT_OFFERED = "NotOffered"
    """No node offers GPU shares of that size, or slices of that MIG profile."""
    INSUFFICIENT_GPU = "InsufficientGPU"
    INSUFFICIENT_RESOURCES = "InsufficientResources"
    TOPOLOGY_NOT_MET = "TopologyNotMet"
    UNKNOWN_LEVEL = "UnknownTopologyLevel"
    UNKNOWN_STRATEGY = "UnknownStrategy"
    STRATEGY_FAILED = "StrategyFailed"
    HELD_FOR_OTHERS = "HeldForOthers"
    TIMED_OUT = "SchedulingTimedOut"
    ATTEMPTS_EXHAUSTED = "SchedulingAttemptsExhausted"
    INVALID = "InvalidRequest"
    NO_PRIORITY_CLASS = "PriorityClassNotFound"
    NO_RESOURCE_CLAIM = "ResourceClaimNotFound"
    INTERNAL_ERROR = "InternalError"
    BUDGET_EXCEEDED = "BudgetExceeded"
    """A GPUBudget has no money left for it."""
    COST_LIMIT = "CostLimitExceeded"
    """It costs more than its own annotation allows."""
    RECOVERING = "Recovering"
    PREEMPTED = "Preempted"

    NO_ROOM = "NoRoom"
    """The bare answer of the engine and of the gang search; planners name the cause."""

    # Preemption
    NOTHING_LOWER = "NothingOfLowerPriority"
    """No workload that may be evicted has a lower priority."""
    NOT_ENOUGH = "PreemptionDoesNotSuffice"
    """The request would not fit even with all of them evicted."""
    BUDGETS = "DisruptionBudgetsExhausted"
    """It would fit, but not within the disruption budgets."""

    # Defragmentation
    STARTS_ANYWAY = "StartsWithoutMoves"
    NOT_NOW = "OutsideQuietWindow"
    NOTHING_MOVABLE = "NothingMayBeMoved"
    NO_ARRANGEMENT = "NoMovesHelp"
    TOO_MANY = "TooManyEvictions"
    NOT_WORTH_IT = "CostsMoreThanItBrings"


@dataclass(frozen=True)
class Refusal:
    """Why a request is not placed."""

    code: Reason
    message: str
    counts: Mapping[str, int] = field(default_factory=dict)
    """Nodes by what they lack, or what preemption or defragmentation could have used."""
    possible: bool = True
    """Whether it could start if nothing ran; False: waiting does not help."""
    detail: object = None
    """What the planner found beyond that, such as a `Shortage`, a `Shortfall` or a `Diagnosis`."""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"
