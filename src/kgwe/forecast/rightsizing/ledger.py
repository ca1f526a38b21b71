"""The decisions of one namespace over time: made, changed, removed, reverted, and stopped by the error budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from kgwe.forecast.rightsizing import faults
from kgwe.forecast.rightsizing.policy import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.forecast.rightsizing.decide import Choice
    from kgwe.forecast.rightsizing.faults import Fault
    from kgwe.forecast.rightsizing.policy import RightsizingPolicy

T = TypeVar("T")

MOST_KEYS: Final = 500
MOST_EVENTS: Final = 50


@dataclass(frozen=True, slots=True)
class Decided:
    """A smaller request for the pods of one key."""

    choice: Choice
    fingerprint: str = ""
    since_s: float = 0.0
    run_p95_s: float | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Revert:
    """A key that keeps its request."""

    reason: str
    message: str
    at_s: float

    @property
    def is_error(self) -> bool:
        """Whether it counts against the error budget."""
        return self.reason != faults.MANUAL


@dataclass(frozen=True, slots=True)
class Event:
    at_s: float
    key: str
    what: str
    message: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is decided in one namespace."""

    mode: Mode
    decided: Mapping[str, Decided]
    reverted: Mapping[str, Revert]
    refused: Mapping[str, str]
    events: tuple[Event, ...] = ()
    problem: str = ""

    @property
    def errors(self) -> int:
        return sum(each.is_error for each in self.reverted.values())


EMPTY: Final = Ledger(Mode.OFF, {}, {}, {})


def advance(
    before: Ledger,
    policy: RightsizingPolicy,
    found: Mapping[str, Decided | str],
    hurt: Mapping[str, Fault],
    now_s: float,
) -> Ledger:
    """Return the ledger after one round.

    `found`: of each key that was looked at, the decision, or why there is none. A key that was not looked at keeps its
    decision. `hurt`: keys whose smaller request did harm.
    """
    events: list[Event] = []
    reverted = dict(before.reverted)
    for key, fault in hurt.items():
        if key in before.decided and key not in reverted:
            reverted[key] = Revert(fault.reason, fault.message, now_s)
            events.append(Event(now_s, key, "Reverted", f"{fault.reason}: {fault.message}"))
    decided = {key: each for key, each in before.decided.items() if key not in reverted}
    refused = {key: reason for key, reason in before.refused.items() if key not in found}
    for key, new in found.items():
        if key in reverted:
            continue
        if isinstance(new, str):
            refused[key] = new
            if decided.pop(key, None) is not None:
                events.append(Event(now_s, key, "Removed", new))
            continue
        old = decided.get(key)
        if old is not None and old.choice.describe() == new.choice.describe():
            continue  # the reason stays that of the decision: no write for each new hour of history
        decided[key] = replace(new, since_s=now_s)
        events.append(Event(now_s, key, "Decided" if old is None else "Changed", _describe(new)))
    if policy.mode is not before.mode:
        events.append(Event(now_s, "", "Mode", f"{before.mode} -> {policy.mode}"))
    problem = _find_problem(reverted, policy)
    if problem and not before.problem:
        events.append(Event(now_s, "", "Stopped", problem))
    return Ledger(
        policy.mode,
        _limit({} if problem or policy.mode is Mode.OFF else decided),
        _limit(reverted),
        _limit(refused),
        (*before.events, *events)[-MOST_EVENTS:],
        problem,
    )


def _describe(new: Decided) -> str:
    return f"{new.choice.describe()}: {new.choice.reason}"


def _find_problem(reverted: Mapping[str, Revert], policy: RightsizingPolicy) -> str:
    count = sum(each.is_error for each in reverted.values())
    if count < max(policy.error_budget, 1):
        return ""
    return f"{count} reverts have used up the error budget of {policy.error_budget}"


def _limit(entries: Mapping[str, T]) -> dict[str, T]:
    return dict(sorted(entries.items())[:MOST_KEYS])
