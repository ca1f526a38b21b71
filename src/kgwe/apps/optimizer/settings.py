"""Settings of the optimizer: flag, environment (KGWE_OPTIMIZER_<KEY>), file, default, in this order."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import msgspec

from kgwe import errors
from kgwe.apps import configuration
from kgwe.forecast.waste.score import Formula
from kgwe.model.units import phrasing, quantity
from kgwe.notify.settings import NotifySettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MAX_PORT = 65535
ENV_PREFIX = "KGWE_OPTIMIZER_"
#: the variable that other tools read, too
PROMETHEUS_VARIABLE = "PROMETHEUS_URL"


_PRICES = {"H100-SXM5-80GB": 3.0, "A100-SXM4-80GB": 2.5, "L40S": 1.5}
_SPOT_PRICES = {"H100-SXM5-80GB": 1.2, "A100-SXM4-80GB": 1.0, "L40S": 0.6}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    # Where history is stored: a path of a SQLite file, or postgresql://… . With SQLite there is one replica.
    store: str = "optimizer.db"
    # Address of the gRPC service. One that other machines can reach needs the three PEM files.
    grpc_bind_address: str = "127.0.0.1:50051"
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_ca_file: str = ""
    # Address of /metrics, /healthz and /readyz.
    metrics_bind_address: str = ":8080"
    # Usage from Prometheus at this URL, and how to authenticate. Empty: the optimizer scrapes the exporters itself.
    prometheus_url: str = ""
    prometheus_token_file: str = ""
    prometheus_username: str = ""
    prometheus_password_file: str = ""
    prometheus_ca_file: str = ""
    prometheus_tenant: str = ""
    # Label matchers of this cluster's series, such as cluster="prod", if Prometheus has several clusters.
    prometheus_matchers: str = ""
    # Seconds that each step of a window looks back; at least the interval at which Prometheus scrapes. 0: the step.
    prometheus_range_seconds: float = 0.0
    # Exporters that the optimizer scrapes: URLs, or the URL of an http_sd service that lists them.
    exporters: tuple[str, ...] = ()
    exporters_from: str = ""
    # Port and path of the exporter on each GPU node, where neither of the two above is set.
    exporter_port: int = 9400
    exporter_path: str = "/metrics"
    scrape_seconds: float = 15.0
    # Seconds between two writes of runs, peaks and minutes to the store.
    record_seconds: float = 60.0
    # Whether learned models are used beside the histories of workloads, and how often they are trained.
    enable_ml_predictions: bool = msgspec.field(default=True, name="enableMLPredictions")
    model_update_interval: str = "1h"
    # Messages of clients that push telemetry which wait to be taken in.
    telemetry_buffer_size: int = 1000
    # Seconds between two judgements of all GPU pods, and the seconds that each one covers.
    waste_interval_seconds: float = 30.0
    waste_window_seconds: float = 600.0
    # Seconds for which a pod must be below half of its GPUs to be underused, and the resolution of the window.
    waste_underused_seconds: float = 300.0
    waste_step_seconds: float = 30.0
    # Waste scores from 0 to 100: `unused` compute, or `weighted`: 0.6 x idle compute + 0.4 x idle memory.
    waste_formula: str = "unused"
    # Seconds of metering after a recommendation was followed, until the realised saving is reported.
    verify_after_seconds: float = 3600.0
    # Whether findings become Events and conditions of pods.
    report_findings: bool = True
    # Whether idle workloads may be suspended in namespaces that opt in (see docs/idle.md).
    enable_idle_actions: bool = True
    # Seconds of idleness before an owner is notified, and from then until the workload is suspended. Namespaces that
    # opt in may set other times.
    idle_after_seconds: float = 1800.0
    idle_grace_seconds: float = 1800.0
    # Whether requests are right-sized in namespaces that opt in (see docs/rightsizing.md), and how often it is decided.
    enable_rightsizing: bool = True
    rightsizing_interval_seconds: float = 60.0
    # Hours of measured use, and confidence in the memory need, before a request becomes smaller.
    rightsizing_least_hours: int = 24
    rightsizing_least_confidence: float = 0.4
    # Channels and routes of notifications (see docs/notifications.md).
    notifications: NotifySettings = NotifySettings()
    # US dollars per GPU-hour by GPU model. A model that is missing has no price, and its savings no money figure.
    prices: dict[str, float] = msgspec.field(default_factory=lambda: dict(_PRICES))
    spot_prices: dict[str, float] = msgspec.field(default_factory=lambda: dict(_SPOT_PRICES))
    leader_elect: bool = True
    lease_name: str = "kgwe-optimizer"
    lease_namespace: str = "kgwe-system"
    lease_duration_seconds: int = 15
    renew_deadline_seconds: float = 10.0
    retry_period_seconds: float = 2.0
    log_level: str = "info"

    @property
    def model_update_s(self) -> float:
        return quantity.parse_duration(self.model_update_interval)


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings; raise Permanent with the path of the invalid key."""
    found = dict(overrides or {})
    if not found.get("prometheus_url") and not os.environ.get(f"{ENV_PREFIX}PROMETHEUS_URL"):
        found["prometheus_url"] = os.environ.get(PROMETHEUS_VARIABLE) or None
    loaded = configuration.load(Settings, ENV_PREFIX, path, found)
    _check(loaded)
    return loaded


def _check(settings: Settings) -> None:
    try:
        seconds = settings.model_update_s
    except (ValueError, errors.KgweError) as exc:
        raise errors.Permanent(f"settings: modelUpdateInterval: {exc}; write it as 30m or 1h") from exc
    positive = {
        "modelUpdateInterval": seconds,
        "scrapeSeconds": settings.scrape_seconds,
        "recordSeconds": settings.record_seconds,
        "wasteIntervalSeconds": settings.waste_interval_seconds,
        "wasteWindowSeconds": settings.waste_window_seconds,
        "wasteStepSeconds": settings.waste_step_seconds,
        "verifyAfterSeconds": settings.verify_after_seconds,
        "rightsizingIntervalSeconds": settings.rightsizing_interval_seconds,
        "rightsizingLeastHours": settings.rightsizing_least_hours,
        "telemetryBufferSize": settings.telemetry_buffer_size,
    }
    for name, value in positive.items():
        if not 0 < value < math.inf:
            raise errors.Permanent(f"settings: {name} must be above 0, not {value:g}")
    not_negative = {
        "wasteUnderusedSeconds": settings.waste_underused_seconds,
        "idleAfterSeconds": settings.idle_after_seconds,
        "idleGraceSeconds": settings.idle_grace_seconds,
        "prometheusRangeSeconds": settings.prometheus_range_seconds,
    }
    for name, value in not_negative.items():
        if not 0 <= value < math.inf:
            raise errors.Permanent(f"settings: {name} must not be negative, but is {value:g}")
    _check_words(settings)
    if settings.waste_step_seconds > settings.waste_window_seconds:
        raise errors.Permanent("settings: wasteStepSeconds must not be longer than wasteWindowSeconds")


def _check_words(settings: Settings) -> None:
    if settings.waste_formula not in list(Formula):
        known = phrasing.join_words(list(Formula), "or")
        raise errors.Permanent(f"settings: wasteFormula must be {known}, not {settings.waste_formula!r}")
    if not 0 < settings.exporter_port <= _MAX_PORT:
        raise errors.Permanent(f"settings: exporterPort must be from 1 to {_MAX_PORT}, not {settings.exporter_port}")
    files = (settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    if any(files) and not all(files):
        raise errors.Permanent("settings: tlsCertFile, tlsKeyFile and tlsCaFile go together")
    for name, table in (("prices", settings.prices), ("spotPrices", settings.spot_prices)):
        for model, price in table.items():
            if not 0 <= price < math.inf:
                raise errors.Permanent(f"settings: {name}.{model} must be a price per GPU-hour, not {price}")
