"""The result of one phase of a cluster benchmark."""

from __future__ import annotations

import msgspec

from kgwe.bench.cluster.measure.locality import Nearness  # noqa: TC001 -- msgspec resolves annotations at run time


class PhaseResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The numbers of one phase. Numbers that a scenario does not have are absent."""

    per_s: float | None = None
    bind_p50_s: float | None = None
    bind_p99_s: float | None = None
    # From the last submission to the last binding of each gang.
    gang_p50_s: float | None = None
    gang_p99_s: float | None = None
    submit_s: float | None = None
    api_writes_per_pod: float | None = None
    # CPU of all processes together. On few cores it limits the rate, and other load on the machine affects it least.
    cpu_ms_per_pod: float | None = None
    nearness: Nearness | None = None
    # Seconds from the last pod to the first refusal, and the message of the refusal.
    verdict_s: float | None = None
    verdict: str = ""
    # Seconds from each start of the process to its first written decision, and to the first binding.
    first_decision_s: float | None = None
    first_bind_s: float | None = None
    starts_s: list[float] = msgspec.field(default_factory=list)
    # Numbers that must be zero.
    unbound: int = 0
    doubled: int = 0
    oversubscribed: int = 0
    # Bindings that the API server refused: harmless, but wasted work.
    refused_bindings: int = 0
    settled: bool = True
    wall_s: float = 0.0
    load_1m: float = 0.0
    cpu_s: dict[str, float] = msgspec.field(default_factory=dict)
    rss_mb: dict[str, float] = msgspec.field(default_factory=dict)
    writes: dict[str, float] = msgspec.field(default_factory=dict)
    # Memory of KGWE.
    rss_peak_mb: float | None = None
