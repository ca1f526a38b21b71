"""The status of MIGStrategies, written only if it changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.apps.mig import census
from kgwe.kube.api.meta import Condition
from kgwe.model.gpu.mig import Phase
from kgwe.model.units.phrasing import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.apps.mig.census import MigCard
    from kgwe.kube.api.kgwe.migstrategy import MIGStrategy

READY: Final = "Ready"
_MOST_NAMED: Final = 5
_MOST_MESSAGE: Final = 1024


@dataclass
class Outcome:
    """The result of one strategy in one round."""

    seen: tuple[MigCard, ...] = ()
    changed: set[str] = field(default_factory=set)
    """GPUs with a requested change."""
    waiting: tuple[str, ...] = ()
    short: dict[str, int] = field(default_factory=dict)
    left_alone: dict[str, str] = field(default_factory=dict)
    """Node -> why its GPUs are skipped."""
    strange: list[str] = field(default_factory=list)
    """GPU models that have none of the profiles."""


def build_status(strategy: MIGStrategy, outcome: Outcome, now: str) -> dict[str, Any] | None:
    """Return the new status as a merge patch; None if nothing changes."""
    old = strategy.status
    pending = {each.card.node for each in outcome.seen if not each.is_settled or each.card.uuid in outcome.changed}
    applied = sorted({each.card.node for each in outcome.seen} - pending)
    shares = census.profile_shares(outcome.seen)
    condition = _ready_condition(outcome, len(pending))
    before = next((each for each in old.conditions if each.type == READY), None)
    since = before.lastTransitionTime if before and before.status == condition.status else None
    timed = msgspec.structs.replace(
        condition, lastTransitionTime=since or now, observedGeneration=strategy.metadata.generation
    )
    status: dict[str, Any] = {
        "appliedNodes": applied,
        # A merge patch keeps fields that are not listed.
        "currentDistribution": {**dict.fromkeys(old.currentDistribution), **shares},
        "observedGeneration": strategy.metadata.generation,
        "conditions": [msgspec.to_builtins(each) for each in (*_drop_ready(old.conditions), timed)],
    }
    is_same = (
        tuple(applied) == old.appliedNodes
        and shares == old.currentDistribution
        and strategy.metadata.generation == old.observedGeneration
        and timed == before
    )
    if outcome.changed:
        status["lastRebalanceTime"] = now
    elif is_same:
        return None
    return status


def changes_only_messages(strategy: MIGStrategy, status: dict[str, Any]) -> bool:
    """Return whether only the messages of the condition would change."""
    old = strategy.status
    before = {each.type: (each.status, each.reason) for each in old.conditions}
    after = {each["type"]: (each["status"], each.get("reason", "")) for each in status["conditions"]}
    shares = {name: share for name, share in status["currentDistribution"].items() if share is not None}
    return (
        before == after
        and "lastRebalanceTime" not in status
        and tuple(status["appliedNodes"]) == old.appliedNodes
        and shares == old.currentDistribution
        and status["observedGeneration"] == old.observedGeneration
    )


def _drop_ready(conditions: Iterable[Condition]) -> list[Condition]:
    return [each for each in conditions if each.type != READY]


def _ready_condition(outcome: Outcome, pending: int) -> Condition:
    failed = [each for each in outcome.seen if each.phase in (Phase.FAILED, Phase.ROLLED_BACK)]
    waits = [each for each in outcome.seen if each.phase == Phase.WAITING]
    said = [
        *(f"{each.card.node} {each.device.index}: {each.device.mig.message}" for each in (*failed, *waits)),
        *(f"{node} skipped: {why}" for node, why in outcome.left_alone.items()),
        *(f"{kind} supports none of the profiles" for kind in outcome.strange),
        *(f"{count} x {profile} missing: no layout has room" for profile, count in outcome.short.items()),
        *(f"waits, {text}" for text in outcome.waiting),
    ]
    if failed:
        status, reason = "False", "Failed"
    elif not outcome.seen:
        status, reason = "False", "NoCards"
        said = said or ["no GPU matches the selector"]
    elif outcome.strange:
        status, reason = "False", "NoSuchProfile"
    elif waits:
        status, reason = "False", "InUse"
    elif pending:
        status, reason = "False", "Cutting"
        said = [f"{format_count(pending, 'node')} not yet partitioned", *said]
    else:
        status, reason = "True", "Applied"
    more = [f"{len(said) - _MOST_NAMED} more"] if len(said) > _MOST_NAMED else []
    return Condition(READY, status, reason, "; ".join([*said[:_MOST_NAMED], *more])[:_MOST_MESSAGE])
