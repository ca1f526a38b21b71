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
    # Whether strategies with allowDynamicReconfig follow demand; off, every distribution is fixed.
    enable_auto_rebalancing: bool = True
    # Whether such strategies keep one spare slice of each of these profiles ready, where free units allow it.
    enable_prewarming: bool = True
    preferred_profiles: tuple[str, ...] = ("1g.10gb", "2g.20gb", "3g.40gb")
    # Seconds in which changes are gathered before cards are decided on.
    gather_seconds: float = 1.0
    # Seconds after which cards are looked at again though nothing seems to have changed.
    interval_seconds: float = 30.0
    # Seconds a card is left as it is after it was asked to change.
    cooldown_seconds: float = 30.0
    # Least seconds between two rewrites of a strategy's message when nothing else changed.
    message_interval_seconds: float = 30.0
    # Nodes on which cards are being cut at the same time.
    max_concurrent_nodes: int = 8
    # Seconds an agent has to do what it was asked; then its node is no longer waited for.
    patience_seconds: float = 180.0
    # Whether pods that consent may be moved so that a card can be cut.
    enable_draining: bool = True
    # Seconds a pod has run at least before it is moved.
    drain_min_run_seconds: float = 300.0
    # Seconds moved pods have to leave; then nothing is cut for now, and their slices are in service again.
    drain_timeout_seconds: float = 600.0
    # Seconds after which a pod that a disruption budget kept where it is may be asked again.
    drain_pause_seconds: float = 300.0
    # Seconds after which what was asked counts half in the forecast.
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
    """Read settings; Permanent with the path of the bad key when they do not make sense."""
    return configuration.load(Settings, ENV_PREFIX, path, overrides)
