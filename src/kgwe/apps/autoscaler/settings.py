"""Settings of the autoscaler: flag, environment (KGWE_AUTOSCALER_<KEY>), file, default, in this order."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe import errors
from kgwe.apps import configuration
from kgwe.apps.autoscaler import cloud_settings  # noqa: TC001 - read at run time

if TYPE_CHECKING:
    from collections.abc import Mapping

ENV_PREFIX: Final = "KGWE_AUTOSCALER_"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    # Seconds between two rounds; a change that matters starts one earlier.
    reconcile_seconds: float = 30.0
    # Seconds in which changes are collected before a round.
    gather_seconds: float = 1.0
    # Name of this cluster at the provider: instances of other clusters are never touched.
    cluster: str = "local"
    # Price files (CSV or YAML), later ones first. Built-in prices apply where no file has one.
    price_files: tuple[str, ...] = ()
    # Seconds in which a cloud must answer a call. Policies of other clouds do not wait for longer.
    cloud_timeout_seconds: float = 30.0
    # Show plans in the status of policies, and buy or remove nothing.
    dry_run: bool = False
    # Use of GPUs from Prometheus at this URL, and how to authenticate. Without a source the use is not known, and only
    # empty nodes are removed.
    prometheus_url: str = ""
    prometheus_token_file: str = ""
    prometheus_username: str = ""
    prometheus_password_file: str = ""
    prometheus_ca_file: str = ""
    prometheus_tenant: str = ""
    # Label matchers of this cluster's series, such as cluster="prod", if Prometheus has several clusters.
    prometheus_matchers: str = ""
    prometheus_range_seconds: float = 0.0
    # Exporters that the process scrapes itself: URLs, or the URL of an http_sd service that lists them.
    exporters: tuple[str, ...] = ()
    exporters_from: str = ""
    scrape_seconds: float = 15.0
    # Seconds over which the use of GPUs is averaged.
    use_window_seconds: float = 600.0
    # Namespace of the simulated cloud's orders (provider kwok).
    namespace: str = "kgwe-system"
    # Clouds to buy from; see cloud_settings.py. Without any, only the simulated cloud.
    aws: cloud_settings.Aws | None = None
    gcp: cloud_settings.Gcp | None = None
    azure: cloud_settings.Azure | None = None
    karpenter: cloud_settings.Karpenter | None = None
    # Seconds that drained pods which declare a checkpoint have for it.
    checkpoint_seconds: float = 30.0
    # Address of /metrics, /healthz and /readyz.
    metrics_bind_address: str = ":8080"
    leader_elect: bool = True
    lease_name: str = "kgwe-autoscaler"
    lease_namespace: str = "kgwe-system"
    lease_duration_seconds: int = 15
    renew_deadline_seconds: float = 10.0
    retry_period_seconds: float = 2.0
    log_level: str = "info"

    @property
    def price_paths(self) -> tuple[Path, ...]:
        return tuple(map(Path, self.price_files))


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings; raise Permanent with the invalid key."""
    loaded = configuration.load(Settings, ENV_PREFIX, path, overrides)
    if not 0 < loaded.reconcile_seconds < math.inf:
        raise errors.Permanent(f"settings: reconcileSeconds must be above 0, not {loaded.reconcile_seconds:g}")
    if not 0 < loaded.cloud_timeout_seconds < math.inf:
        raise errors.Permanent(f"settings: cloudTimeoutSeconds must be above 0, not {loaded.cloud_timeout_seconds:g}")
    if not 0 < loaded.use_window_seconds < math.inf:
        raise errors.Permanent(f"settings: useWindowSeconds must be above 0, not {loaded.use_window_seconds:g}")
    return loaded
