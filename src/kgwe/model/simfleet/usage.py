"""Use profiles of the simulated fleet: the GPU usage of a workload over time.

A profile is written in a pod's annotation `kgwe.nvidia.io/use-profile`, as a name and its parameters:

    idle                                         holds the GPU and does nothing
    constant(util=0.9, mem=0.7)                  steady, after a short warm-up
    bursty(util=0.8, base=0.05, period=2m, duty=0.4)   busy for `duty` of every period, each pod at its own moment
    diurnal(util=0.8, base=0.1, peak=14h)        follows the hours of the day (UTC), as traffic does
    oom-after(10m, mem=0.3)                      memory grows from `mem` until the GPU is full; then the pod fails

Every profile also takes tensor= and dram= (activity of the tensor cores and the memory interface while busy)
and noise=. Shares are written 0.9 or 90%, times 90s, 10m, 24h. A profile is a pure function: the same profile,
times and seed always give the same use, and every value lies between 0 and 1.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

ANNOTATION: Final = "kgwe.nvidia.io/use-profile"
WORKLOAD_TYPE_LABELS: Final = ("kgwe.nvidia.io/workload-type", "gpu-autoscaler.io/workload-type")


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of a GPU at one time, as shares of its capacity."""

    util: float = 0.0
    """Time in which a kernel runs."""
    memory: float = 0.0
    """Memory in use."""
    tensor: float = 0.0
    """Cycles in which the tensor cores work."""
    dram: float = 0.0
    """Cycles in which the memory interface works."""


IDLE: Final = Usage()


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile with every parameter; a kind reads those it knows."""

    kind: str
    util: float = 0.8
    mem: float = 0.6
    base: float = 0.05
    tensor: float = 0.55
    dram: float = 0.45
    noise: float = 0.03
    period: float = 120.0
    duty: float = 0.5
    peak: float = 14 * 3600.0
    after: float = 600.0


_ALWAYS: Final = ("mem", "tensor", "dram", "noise")
_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "idle": ("mem",),
    "constant": ("util", *_ALWAYS),
    "bursty": ("util", "base", "period", "duty", *_ALWAYS),
    "diurnal": ("util", "base", "period", "peak", *_ALWAYS),
    "oom-after": ("after", "util", *_ALWAYS),
}
_OWN_DEFAULTS: Final[Mapping[str, Mapping[str, float]]] = {
    "idle": {"mem": 0.01, "noise": 0.0},
    "constant": {"util": 0.9, "mem": 0.7},
    "diurnal": {"base": 0.1, "period": 86400.0, "tensor": 0.35, "noise": 0.05},
    "bursty": {"tensor": 0.35},
    "oom-after": {"util": 0.9, "mem": 0.3},
}
_TIMES: Final = frozenset({"period", "peak", "after"})
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SHAPE: Final = re.compile(r"\s*([a-z-]+)\s*(?:\(\s*(.*?)\s*\))?\s*", re.ASCII | re.DOTALL)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_SHARE: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(%?)", re.ASCII)
_MAX_CHARS: Final = 256
_LONGEST_S: Final = 366 * 86400.0

# Ramp from a standing start to full use: loading the model, warming up.
_WARM_UP_S: Final = 20.0
# Figures move in steps: dcgm-exporter too samples every few seconds.
_STEP_S: Final = 5.0

#: What pods do that say nothing about it, by the workload types of both label dialects.
DEFAULTS: Final[Mapping[str, str]] = {
    "Training": "constant(util=0.92, mem=0.8)",
    "FineTuning": "constant(util=0.85, mem=0.7)",
    "Inference": "bursty(util=0.7, mem=0.6, base=0.08, period=90s, duty=0.5)",
    "DataPreprocessing": "bursty(util=0.45, mem=0.3, base=0.05, period=3m, duty=0.6, tensor=0.05)",
    "Reinforcement": "bursty(util=0.75, mem=0.55, base=0.2, period=45s, duty=0.6)",
    "Visualization": "bursty(util=0.35, mem=0.2, base=0.02, period=5m, duty=0.2, tensor=0)",
    "training": "constant(util=0.92, mem=0.8)",
    "inference": "bursty(util=0.7, mem=0.6, base=0.08, period=90s, duty=0.5)",
    "serving": "diurnal(util=0.75, mem=0.6, base=0.1)",
    "batch": "constant(util=0.8, mem=0.6)",
    "development": "bursty(util=0.5, mem=0.15, base=0, period=10m, duty=0.08)",
}
UNTYPED: Final = "constant(util=0.75, mem=0.6)"


@functools.lru_cache(maxsize=1024)
def parse_profile(text: str) -> Profile:
    """The profile a text describes, or what to write instead."""
    match = _SHAPE.fullmatch(text) if len(text) <= _MAX_CHARS else None
    if match is None:
        raise errors.Permanent(f"{text[:80]!r} is not a use profile; write for example constant(util=0.9, mem=0.7)")
    kind, inside = match[1], match[2] or ""
    if kind not in _PARAMETERS:
        raise errors.Permanent(f"no use profile {kind!r}; there are {', '.join(_PARAMETERS)}")
    given: dict[str, float] = {}
    for index, part in enumerate(part for part in inside.split(",") if part.strip()):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            # One thing per profile may go without a name, first: how long until the end.
            key, value = ("after", key) if kind == "oom-after" and index == 0 else (key, "")
        if key not in _PARAMETERS[kind] or key in given:
            raise errors.Permanent(
                f"{kind} takes {', '.join(f'{name}=' for name in _PARAMETERS[kind])} each once, not {part.strip()!r}"
            )
        given[key] = _parse_value(kind, key, value)
    return Profile(kind, **{**_OWN_DEFAULTS.get(kind, {}), **given})


def _parse_value(kind: str, key: str, value: str) -> float:
    if key in _TIMES:
        match = _DURATION.fullmatch(value)
        seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
        if not 0 < seconds <= _LONGEST_S:
            raise errors.Permanent(f"{kind}: {key}={value} is not a time; write for example {key}=90s, 10m or 24h")
        return seconds
    match = _SHARE.fullmatch(value)
    share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= share <= 1:
        raise errors.Permanent(f"{kind}: {key}={value} is not a share; write 0 to 1, or 0% to 100%")
    return share


def default_profile(labels: Mapping[str, str]) -> Profile:
    """Return the profile of a pod with these labels that names no profile."""
    for label in WORKLOAD_TYPE_LABELS:
        if text := DEFAULTS.get(labels.get(label, "")):
            return parse_profile(text)
    return parse_profile(UNTYPED)


def fails_after_s(profile: Profile) -> float | None:
    """Return the seconds from the start until the workload runs out of memory; None: never."""
    return profile.after if profile.kind == "oom-after" else None


def usage_at(profile: Profile, age_s: float, clock_s: float, seed: int) -> Usage:
    """The use `age_s` after the start, at `clock_s` of the wall clock (seconds since 1970, UTC)."""
    age_s = max(age_s, 0.0)
    if profile.kind == "idle":
        return Usage(memory=profile.mem)
    warm = min(age_s / _WARM_UP_S, 1.0)
    wobble = profile.noise * (2.0 * _unit(seed, int(clock_s // _STEP_S)) - 1.0)
    util = _clamp_share(_level(profile, age_s, clock_s, seed) * warm + (wobble if warm == 1.0 else 0.0))
    memory = profile.mem * warm
    if profile.kind == "oom-after":
        memory = profile.mem + (1.0 - profile.mem) * min(age_s / profile.after, 1.0)
    return Usage(util, _clamp_share(memory), _clamp_share(util * profile.tensor), _clamp_share(util * profile.dram))


def _level(profile: Profile, age_s: float, clock_s: float, seed: int) -> float:
    if profile.kind == "bursty":
        # A phase of its own per pod, so that a fleet does not beat as one heart.
        phase = math.fmod(age_s / profile.period + _unit(seed, 0), 1.0)
        return profile.util if phase < profile.duty else profile.base
    if profile.kind == "diurnal":
        wave = 0.5 + 0.5 * math.cos(2.0 * math.pi * (clock_s - profile.peak) / profile.period)
        return profile.base + (profile.util - profile.base) * wave
    return profile.util


def _clamp_share(share: float) -> float:
    return 0.0 if share < 0.0 else min(share, 1.0)


_MASK: Final = (1 << 64) - 1


def _unit(seed: int, step: int) -> float:
    """A number in [0, 1) that looks random and follows from its arguments (splitmix64)."""
    x = (seed + step * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return float((x ^ (x >> 31)) >> 11) / (1 << 53)
