"""When a smaller request has hurt, so that it is taken back: out of memory, a restart loop, or a slow-down."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OUT_OF_MEMORY, RESTART_LOOP, SLOW_DOWN, RATE_FELL = "OutOfMemory", "RestartLoop", "SlowDown", "RateFell"
MANUAL: Final = "Manual"
#: of the owner: units of work per second that a pod does, on the pod
RATE: Final = "kgwe.nvidia.io/rate"
MOST_RESTARTS: Final = 3
SLOWER: Final = 1.2
LEAST_RATE: Final = 0.8
_LEAST_RUNS: Final = 3
_PERCENTILE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a pod with a smaller request fares."""

    pod: str
    ran_out_of_memory: bool = False
    restarts: int = 0
    #: how long it runs or ran; 0: it has not started
    lasted_s: float = 0.0
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    reason: str
    message: str


def find_fault(outcomes: Iterable[Outcome], *, run_p95_s: float | None, rate: float | None) -> Fault | None:
    """Return what went wrong with pods that have a smaller request; None: nothing.

    `run_p95_s` and `rate`: of pods with whole GPUs, where they are known.
    """
    for each in outcomes:
        if each.ran_out_of_memory:
            return Fault(OUT_OF_MEMORY, f"pod {each.pod} ran out of memory")
        if each.restarts >= MOST_RESTARTS:
            return Fault(RESTART_LOOP, f"pod {each.pod} restarted {each.restarts} times")
        if run_p95_s and each.lasted_s > SLOWER * run_p95_s:
            return Fault(
                SLOW_DOWN, f"pod {each.pod} runs for {each.lasted_s:.0f} s; with whole GPUs 95 % took {run_p95_s:.0f} s"
            )
        if rate and each.rate is not None and each.rate < LEAST_RATE * rate:
            return Fault(RATE_FELL, f"pod {each.pod} does {each.rate:g} per second; with a whole GPU it was {rate:g}")
    return None


def read_rate(text: str | None) -> float | None:
    """Return the rate that an owner states; None: none that can be read."""
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def find_p95(durations_s: Sequence[float]) -> float | None:
    """Return the 95th percentile of run times; None if there are too few."""
    if len(durations_s) < _LEAST_RUNS:
        return None
    ordered = sorted(durations_s)
    return ordered[min(math.ceil(_PERCENTILE * len(ordered)) - 1, len(ordered) - 1)]
