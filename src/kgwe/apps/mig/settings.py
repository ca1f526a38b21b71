"""Settings of the MIG controller: flag, environment (KGWE_MIG_<KEY>), file, default, in this order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kgwe.apps import configuration

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ENV_PREFIX = "KGWE_MIG_"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    # Let strategies with allowDynamicReconfig follow demand; if off, all distributions are fixed.
    enable_auto_rebalancing: bool = True
    # Let such strategies keep one spare slice of each of these profiles, if capacity allows it.
    enable_prewarming: bool = True
    preferred_profiles: tuple[str, ...] = ("1g.10gb", "2g.20gb", "3g.40gb")
    # Seconds in which changes are collected before a decision.
    gather_seconds: float = 1.0
    # Seconds between two rounds without a change.
    interval_seconds: float = 30.0
    # Seconds for which a GPU stays unchanged after a requested change.
    cooldown_seconds: float = 30.0
    # Minimum seconds between two rewrites of a strategy's message if nothing else changed.
    message_interval_seconds: float = 30.0
    # Maximum number of nodes that change layouts at the same time.
    max_concurrent_nodes: int = 8
    # Seconds an agent has to apply a layout; afterwards its node no longer blocks others.
    patience_seconds: float = 180.0
    # Allow moving pods that consent, so that a layout can change.
    enable_draining: bool = True
    # Minimum seconds a pod has run before it is moved.
    drain_min_run_seconds: float = 300.0
    # Seconds moved pods have to leave; afterwards the change is cancelled and their slices are in service again.
    drain_timeout_seconds: float = 600.0
    # Seconds after which a pod that a disruption budget protected is tried again.
    drain_pause_seconds: float = 300.0
    # Half-life of requests in the forecast, in seconds.
    forecast_half_life_seconds: float = 3600.0
    # Address of /metrics, /healthz and /readyz.
    metrics_bind_address: str = ":8080"
    leader_elect: bool = True
    lease_name: str = "kgwe-mig"
    lease_namespace: str = "kgwe-system"
    lease_duration_seconds: int = 15
    renew_deadline_seconds: float = 10.0
    retry_period_seconds: float = 2.0
    log_level: str = "info"


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings; raise Permanent with the path of the invalid key."""
    return configuration.load(Settings, ENV_PREFIX, path, overrides)
