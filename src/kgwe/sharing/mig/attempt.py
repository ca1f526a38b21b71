"""One reconfiguration attempt of a GPU: deadline, retries, rollback and back-off.

An attempt that fails, or takes too long, is rolled back to the layout it started with, as far as what is in use by then
allows. The next attempt follows after a back-off that doubles each time. Nothing of this is stored: after a restart the
next attempt begins with the layout that is found.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kgwe.model.gpu.mig import Phase
from kgwe.sharing.mig.lifecycle import DesiredLayout, choose_fallback, plan_steps

if TYPE_CHECKING:
    from kgwe.model.gpu import mig
    from kgwe.sharing.mig.lifecycle import ObservedGpu, Step


class Direction(enum.StrEnum):
    """What the attempt is doing."""

    FORWARD = "forth"
    ROLLBACK = "back"
    BACKOFF = "rest"
    """It failed; the next attempt follows later."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one attempt."""

    timeout_s: float = 60.0
    """Longest time from the first step to the last; waiting for workloads to end does not count."""
    max_failures: int = 3
    """Consecutive failures after which it is rolled back."""
    backoff_s: float = 300.0
    """Time until the next attempt; doubles each time, up to 16 times."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A desired layout being applied. Memory only: a new process starts over from the layout it finds."""

    desired: DesiredLayout
    before: DesiredLayout
    began_s: float
    direction: Direction = Direction.FORWARD
    failures: int = 0
    attempts: int = 0
    reason: str = ""
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step, and the status of the GPU."""

    attempt: Attempt
    step: Step | None = None
    phase: str = ""
    message: str = ""
    target: DesiredLayout | None = None
    """The layout the GPU is changing to now; None: it stays as it is."""


_MAX_BACKOFF: Final = 16


def start_attempt(gpu: ObservedGpu, desired: DesiredLayout, now_s: float) -> Attempt:
    return Attempt(desired, DesiredLayout(gpu.is_enabled, gpu.layout), now_s)


def decide_step(geometry: mig.Geometry, attempt: Attempt, gpu: ObservedGpu, now_s: float, limits: Limits) -> Decision:
    """The next step, or why there is none."""
    if attempt.direction is Direction.BACKOFF:
        rest_s = limits.backoff_s * min(2 ** (attempt.attempts - 1), _MAX_BACKOFF)
        if now_s - attempt.began_s < rest_s and not plan_steps(geometry, gpu, attempt.desired).is_done:
            return Decision(attempt, phase=attempt.phase, message=attempt.reason)
        again = start_attempt(gpu, attempt.desired, now_s)
        attempt = replace(again, attempts=attempt.attempts)
    if attempt.direction is Direction.FORWARD:
        return _go_forward(geometry, attempt, gpu, now_s, limits)
    return _roll_back(geometry, attempt, gpu, now_s, limits)


def _go_forward(geometry: mig.Geometry, attempt: Attempt, gpu: ObservedGpu, now_s: float, limits: Limits) -> Decision:
    left = plan_steps(geometry, gpu, attempt.desired)
    if left.is_done:
        return Decision(start_attempt(gpu, attempt.desired, now_s), target=attempt.desired)
    if not left.steps:
        # Waiting for workloads to end does not count against the timeout.
        waiting = replace(attempt, began_s=now_s)
        return Decision(waiting, phase=Phase.WAITING, message="; ".join(left.waits), target=attempt.desired)
    if now_s - attempt.began_s > limits.timeout_s:
        late = _turn_back(attempt, f"not done within {limits.timeout_s:g} s: {left.steps[0]}", now_s)
        return _roll_back(geometry, late, gpu, now_s, limits)
    message = f"{left.steps[0]}, then {len(left.steps) - 1} more" if len(left.steps) > 1 else str(left.steps[0])
    return Decision(attempt, left.steps[0], Phase.CUTTING, message, attempt.desired)


def _roll_back(geometry: mig.Geometry, attempt: Attempt, gpu: ObservedGpu, now_s: float, limits: Limits) -> Decision:
    target = choose_fallback(geometry, gpu, attempt.before)
    left = plan_steps(geometry, gpu, target)
    if not left.steps:
        phase = Phase.FAILED if left.waits else Phase.ROLLED_BACK
        rest = _back_off(attempt, phase, attempt.reason, now_s)
        return Decision(rest, phase=phase, message=rest.reason)
    if now_s - attempt.began_s > limits.timeout_s:
        rest = _back_off(attempt, Phase.FAILED, f"{attempt.reason}; could not be taken back: {left.steps[0]}", now_s)
        return Decision(rest, phase=Phase.FAILED, message=rest.reason)
    return Decision(attempt, left.steps[0], Phase.CUTTING, f"taking back: {attempt.reason}", target)


def record_failure(
    attempt: Attempt, step: Step, reason: str, now_s: float, limits: Limits, *, is_final: bool
) -> Attempt:
    """Record a failed step; `is_final`: a retry cannot help."""
    count = attempt.failures + 1
    if count < limits.max_failures and not is_final:
        return replace(attempt, failures=count)
    if attempt.direction is Direction.FORWARD:
        return _turn_back(attempt, f"{step}: {reason}", now_s)
    return _back_off(attempt, Phase.FAILED, f"{attempt.reason}; could not be taken back: {step}: {reason}", now_s)


def record_success(attempt: Attempt) -> Attempt:
    """Record a successful step."""
    return replace(attempt, failures=0)


def _turn_back(attempt: Attempt, reason: str, now_s: float) -> Attempt:
    return replace(attempt, direction=Direction.ROLLBACK, failures=0, reason=reason, began_s=now_s)


def _back_off(attempt: Attempt, phase: Phase, reason: str, now_s: float) -> Attempt:
    attempts = attempt.attempts + 1
    return replace(
        attempt, direction=Direction.BACKOFF, failures=0, phase=phase, reason=reason, began_s=now_s, attempts=attempts
    )
