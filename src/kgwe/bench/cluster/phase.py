"""What one phase of a cluster benchmark comes to."""

from __future__ import annotations

import msgspec

from kgwe.bench.cluster.measure.locality import Nearness  # noqa: TC001 -- msgspec resolves annotations at run time


class PhaseResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Numbers that a scenario does not have are absent."""

    per_s: float | None = None
    bind_p50_s: float | None = None
    bind_p99_s: float | None = None
    # A gang's last pod submitted to its last pod bound.
    gang_p50_s: float | None = None
    gang_p99_s: float | None = None
    submit_s: float | None = None
    api_writes_per_pod: float | None = None
    # Of all processes together: where they share few cores, this is what limits the rate, and others' work on the
    # machine disturbs it least.
    cpu_ms_per_pod: float | None = None
    nearness: Nearness | None = None
    # The last pod appeared to somebody said that it does not fit, and the words.
    verdict_s: float | None = None
    verdict: str = ""
    # The process started to its first decision written, and to the first binding; every start.
    first_decision_s: float | None = None
    first_bind_s: float | None = None
    starts_s: list[float] = msgspec.field(default_factory=list)
    # What must be zero.
    unbound: int = 0
    doubled: int = 0
    oversubscribed: int = 0
    # Bindings the API server refused: no harm done, but work wasted.
    refused_bindings: int = 0
    settled: bool = True
    wall_s: float = 0.0
    load_1m: float = 0.0
    cpu_s: dict[str, float] = msgspec.field(default_factory=dict)
    rss_mb: dict[str, float] = msgspec.field(default_factory=dict)
    writes: dict[str, float] = msgspec.field(default_factory=dict)
    # Of KGWE.
    rss_peak_mb: float | None = None
