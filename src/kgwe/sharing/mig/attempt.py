"""A wish carried out, with time and failure: forth, and back where it does not get there.

A cut that fails, or takes too long, is taken back to the layout it began with, as far as what is in use by then allows;
then it rests, longer each time, before it is tried again. Nothing of this is needed after a kill: the next attempt
begins with what is there.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kgwe.model.gpu.mig import Phase
from kgwe.sharing.mig.lifecycle import Wish, fallback, plan

if TYPE_CHECKING:
    from kgwe.model.gpu import mig
    from kgwe.sharing.mig.lifecycle import Card, Step


class Way(enum.StrEnum):
    """Which way a card is going."""

    FORTH = "forth"
    BACK = "back"
    REST = "rest"
    """It failed; the next attempt comes later."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How patient a cut is."""

    most_s: float = 60.0
    """Longest time from the first step to the last; waiting for the end of work does not count."""
    tries: int = 3
    """Failures in a row after which it goes back."""
    rest_s: float = 300.0
    """Until the next attempt; twice as long each time, up to 16 times."""


@dataclass(frozen=True, slots=True)
class Effort:
    """One wish being carried out. Lost with the process: it then begins anew from what is there."""

    wish: Wish
    before: Wish
    began_s: float
    way: Way = Way.FORTH
    failures: int = 0
    attempts: int = 0
    reason: str = ""
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and what to say of the card."""

    effort: Effort
    step: Step | None = None
    phase: str = ""
    message: str = ""
    target: Wish | None = None
    """The layout the card is going to now; None: it stays as it is."""


_LONGEST_REST: Final = 16


def begin(card: Card, wish: Wish, now_s: float) -> Effort:
    return Effort(wish, Wish(card.is_enabled, card.layout), now_s)


def decide(geometry: mig.Geometry, effort: Effort, card: Card, now_s: float, limits: Limits) -> Decision:
    """The next step, or why there is none."""
    if effort.way is Way.REST:
        rest_s = limits.rest_s * min(2 ** (effort.attempts - 1), _LONGEST_REST)
        if now_s - effort.began_s < rest_s and not plan(geometry, card, effort.wish).is_done:
            return Decision(effort, phase=effort.phase, message=effort.reason)
        again = begin(card, effort.wish, now_s)
        effort = replace(again, attempts=effort.attempts)
    if effort.way is Way.FORTH:
        return _forth(geometry, effort, card, now_s, limits)
    return _back(geometry, effort, card, now_s, limits)


def _forth(geometry: mig.Geometry, effort: Effort, card: Card, now_s: float, limits: Limits) -> Decision:
    left = plan(geometry, card, effort.wish)
    if left.is_done:
        return Decision(begin(card, effort.wish, now_s), target=effort.wish)
    if not left.steps:
        # Waiting is for others to end; the clock is for us.
        waiting = replace(effort, began_s=now_s)
        return Decision(waiting, phase=Phase.WAITING, message="; ".join(left.waits), target=effort.wish)
    if now_s - effort.began_s > limits.most_s:
        late = _turned(effort, f"not done within {limits.most_s:g} s: {left.steps[0]}", now_s)
        return _back(geometry, late, card, now_s, limits)
    message = f"{left.steps[0]}, then {len(left.steps) - 1} more" if len(left.steps) > 1 else str(left.steps[0])
    return Decision(effort, left.steps[0], Phase.CUTTING, message, effort.wish)


def _back(geometry: mig.Geometry, effort: Effort, card: Card, now_s: float, limits: Limits) -> Decision:
    target = fallback(geometry, card, effort.before)
    left = plan(geometry, card, target)
    if not left.steps:
        phase = Phase.FAILED if left.waits else Phase.ROLLED_BACK
        rest = _resting(effort, phase, effort.reason, now_s)
        return Decision(rest, phase=phase, message=rest.reason)
    if now_s - effort.began_s > limits.most_s:
        rest = _resting(effort, Phase.FAILED, f"{effort.reason}; could not be taken back: {left.steps[0]}", now_s)
        return Decision(rest, phase=Phase.FAILED, message=rest.reason)
    return Decision(effort, left.steps[0], Phase.CUTTING, f"taking back: {effort.reason}", target)


def failed(effort: Effort, step: Step, reason: str, now_s: float, limits: Limits, *, is_final: bool) -> Effort:
    """A step failed; `is_final`: trying again cannot help."""
    count = effort.failures + 1
    if count < limits.tries and not is_final:
        return replace(effort, failures=count)
    if effort.way is Way.FORTH:
        return _turned(effort, f"{step}: {reason}", now_s)
    return _resting(effort, Phase.FAILED, f"{effort.reason}; could not be taken back: {step}: {reason}", now_s)


def done(effort: Effort) -> Effort:
    """A step succeeded."""
    return replace(effort, failures=0)


def _turned(effort: Effort, reason: str, now_s: float) -> Effort:
    return replace(effort, way=Way.BACK, failures=0, reason=reason, began_s=now_s)


def _resting(effort: Effort, phase: Phase, reason: str, now_s: float) -> Effort:
    attempts = effort.attempts + 1
    return replace(effort, way=Way.REST, failures=0, phase=phase, reason=reason, began_s=now_s, attempts=attempts)
