"""What work says about spot nodes and its deadline: in the spec of a GPUWorkload, or in annotations of a pod.

    kgwe.nvidia.io/deadline: "2026-11-20T22:00:00Z"        when the work must be done
    kgwe.nvidia.io/expected-duration: 6h                   how long it runs; GPUWorkloads have a field
    kgwe.nvidia.io/checkpoint-interval: 30m                how often it saves its work
    kgwe.nvidia.io/restart-overhead: 3m                    how long a start takes before the work goes on
    kgwe.nvidia.io/spot-max-wait: 2h                       how long it waits for spot nodes at most
    kgwe.nvidia.io/progress: "0.4"                         the part of the work that is done and saved

A user who writes false terms changes only what the own work costs, and when it ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.kube.api import timestamp
from kgwe.model.units import quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.kube.api.kgwe.gpuworkload import GPUWorkloadSpec

_PREFIX: Final = "kgwe.nvidia.io/"
DEADLINE: Final = f"{_PREFIX}deadline"
EXPECTED_DURATION: Final = f"{_PREFIX}expected-duration"
CHECKPOINT_INTERVAL: Final = f"{_PREFIX}checkpoint-interval"
RESTART_OVERHEAD: Final = f"{_PREFIX}restart-overhead"
MAX_WAIT: Final = f"{_PREFIX}spot-max-wait"
PROGRESS: Final = f"{_PREFIX}progress"
_CHECKPOINT: Final = f"{_PREFIX}checkpoint"
DEFAULT_RESTART_S: Final = 180.0
_LONGEST_S: Final = 31_536_000.0


@dataclass(frozen=True, slots=True)
class SpotTerms:
    """Terms of one workload, gang or pod."""

    deadline_s: float | None = None
    """Seconds since 1970."""
    run_s: float | None = None
    """The whole run time; None: not known."""
    progress: float = 0.0
    checkpoint_s: float | None = None
    """0: it saves its work when it is asked to. None: it never does."""
    restart_s: float = DEFAULT_RESTART_S
    max_wait_s: float | None = None
    extra: int = 0
    """Replicas of a service beside those that it needs."""
    problem: str = ""
    """What could not be read. The rest counts as not said."""


def from_spec(spec: GPUWorkloadSpec, annotations: Mapping[str, str]) -> SpotTerms | None:
    """Return the terms of a GPUWorkload; None: it has none."""
    said = spec.spot
    if said is None:
        return None
    asked = spec.podTemplate.get("metadata", {})
    template = asked.get("annotations") if isinstance(asked, dict) else None
    saves = isinstance(template, dict) and bool(template.get(_CHECKPOINT))
    try:
        progress, problem = _read_progress(annotations), ""
        deadline = timestamp.epoch_seconds(said.deadline) if said.deadline else None
    except (errors.Permanent, ValueError, OverflowError) as exc:
        progress, problem, deadline = 0.0, str(exc), None
    interval = said.checkpointIntervalSeconds
    return SpotTerms(
        deadline,
        spec.expectedDurationSeconds,
        progress,
        0.0 if interval is None and saves else interval,
        float(said.restartSeconds),
        said.maxWaitSeconds,
        said.extraReplicas,
        problem,
    )


def from_annotations(said: Mapping[str, str]) -> SpotTerms | None:
    """Return the terms of a pod; None: it says nothing about a deadline or a wait."""
    if DEADLINE not in said and MAX_WAIT not in said:
        return None
    try:
        deadline = _read_time(said)
        interval = _read_seconds(said, CHECKPOINT_INTERVAL)
        restart = _read_seconds(said, RESTART_OVERHEAD)
        return SpotTerms(
            deadline,
            _read_seconds(said, EXPECTED_DURATION),
            _read_progress(said),
            0.0 if interval is None and said.get(_CHECKPOINT) else interval,
            DEFAULT_RESTART_S if restart is None else min(restart, 86_400.0),
            _read_seconds(said, MAX_WAIT),
        )
    except errors.Permanent as exc:
        return SpotTerms(problem=str(exc))


def _read_time(said: Mapping[str, str]) -> float | None:
    text = said.get(DEADLINE, "")
    if not text:
        return None
    try:
        return timestamp.epoch_seconds(text)
    except (ValueError, OverflowError):
        raise errors.Permanent(
            f"annotation {DEADLINE}: {text[:64]!r} is not a time such as 2026-11-20T22:00:00Z"
        ) from None


def _read_seconds(said: Mapping[str, str], key: str) -> float | None:
    text = said.get(key, "")
    if not text:
        return None
    try:
        seconds = quantity.parse_duration(text[:32])
    except quantity.BadQuantity as exc:
        raise errors.Permanent(f"annotation {key}: {exc}") from exc
    if seconds > _LONGEST_S:
        raise errors.Permanent(f"annotation {key}: {text[:32]!r} is longer than a year")
    return seconds


def _read_progress(said: Mapping[str, str]) -> float:
    text = said.get(PROGRESS, "")
    if not text:
        return 0.0
    try:
        progress = float(text)
    except ValueError:
        progress = math.nan
    if not 0.0 <= progress <= 1.0:
        raise errors.Permanent(f"annotation {PROGRESS}: {text[:32]!r} is not a number from 0 to 1")
    return progress
