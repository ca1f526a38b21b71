"""What is known of past and present runs of one fingerprint: the input of every forecast about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a workload. A run that has not ended is a censored observation: it lasts at least `lasted_s`."""

    uid: str
    fingerprint: str
    submitted_s: float
    started_s: float
    """Unix time."""
    ended_s: float | None = None
    """None: it still runs."""
    seen_s: float = 0.0
    """Unix time of the last observation of a run that still runs."""
    succeeded: bool | None = None
    user: str = ""
    version: str = ""
    gpus: float = 1.0
    """GPUs of all pods; a share counts as its fraction."""
    pods: int = 1
    gpu_model: str = ""
    domain: str = ""
    """Network domain in which most pods ran."""
    predicted_s: float | None = None
    """The median that was predicted when it started."""
    oom_kills: int = 0
    restarts: int = 0

    @property
    def is_censored(self) -> bool:
        return self.ended_s is None

    @property
    def lasted_s(self) -> float:
        end = self.seen_s if self.ended_s is None else self.ended_s
        return max(end - self.started_s, 0.0)


@dataclass(frozen=True, slots=True)
class UsagePeak:
    """The highest use of GPU memory and the distribution of activity in one hour of one fingerprint.

    Peaks of the running hour are stored every minute, so a restart loses at most a minute.
    """

    fingerprint: str
    hour_s: int
    """Unix time at which the hour begins."""
    samples: int
    """Measured minutes of devices."""
    gaps: int
    """Minutes in which a device was held but not measured."""
    memory_peak_mib: float | None
    memory_total_mib: float | None
    activity_mean: float | None
    activity_p95: float | None
    power_mean_w: float | None


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A fact that never expires while its fingerprint lives: the memory was not enough."""

    fingerprint: str
    at_s: float
    uid: str
    """Of the pod."""
    limit_mib: float | None = None
    """GPU memory that the device had; None if unknown."""
    version: str = ""
