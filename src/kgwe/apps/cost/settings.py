"""Settings of the cost engine: flag, environment (KGWE_COST_<KEY>), file, default, in this order."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe import errors
from kgwe.apps import configuration
from kgwe.costing.attribution import AttributionRules, CustomRule
from kgwe.costing.split import parse_method
from kgwe.notify.settings import NotifySettings

if TYPE_CHECKING:
    from collections.abc import Mapping

ENV_PREFIX: Final = "KGWE_COST_"
_RULES: Final = AttributionRules()


class RuleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    # Pods that the rule is about: patterns of a shell.
    namespace: str = "*"
    labels: dict[str, str] = {}
    # The names that they get.
    team: str = ""
    project: str = ""
    cost_center: str = ""
    experiment: str = ""
    user: str = ""

    @property
    def rule(self) -> CustomRule:
        names = {name: getattr(self, name) for name in ("team", "project", "cost_center", "experiment", "user")}
        given = tuple((name, value) for name, value in names.items() if value)
        return CustomRule(self.namespace, tuple(self.labels.items()), given)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    # Where the ledger is stored: a path of a SQLite file, or postgresql://… . With SQLite there is one replica.
    store: str = "cost.db"
    # Price files (CSV or YAML), later ones first. Built-in prices apply where no file has one.
    price_files: tuple[str, ...] = ()
    builtin_prices: bool = True
    # Price lists of clouds that are read once an hour: aws/us-east-1, azure/eastus, gcp/us-central1. Files come first.
    live_prices: tuple[str, ...] = ()
    # File with the API key for GCP's billing catalogue.
    gcp_key_file: str = ""
    # Bills (FOCUS or AWS CUR, CSV) by which history is restated, and whether amortised amounts count.
    bill_files: tuple[str, ...] = ()
    bills_effective: bool = False
    # How the price of a node is split between GPUs, CPUs and memory: gpu-only, market or fixed.
    split_method: str = "market"
    # Seconds between two counts.
    tracking_seconds: float = 60.0
    # Seconds for which facts may still change, such as the end of a pod that is reported late.
    grace_seconds: int = 180
    # Labels and annotations that name team, project, cost center, experiment and user; the first present counts.
    team_labels: tuple[str, ...] = _RULES.team
    project_labels: tuple[str, ...] = _RULES.project
    cost_center_labels: tuple[str, ...] = _RULES.cost_center
    experiment_labels: tuple[str, ...] = _RULES.experiment
    user_labels: tuple[str, ...] = _RULES.user
    # Rules that give names to pods, before their labels; the first that gives a name counts.
    attribution_rules: tuple[RuleSettings, ...] = ()
    # Use of GPUs from Prometheus at this URL, and how to authenticate.
    prometheus_url: str = ""
    prometheus_token_file: str = ""
    prometheus_username: str = ""
    prometheus_password_file: str = ""
    prometheus_ca_file: str = ""
    prometheus_tenant: str = ""
    # Label matchers of this cluster's series, such as cluster="prod", if Prometheus has several clusters.
    prometheus_matchers: str = ""
    prometheus_range_seconds: float = 0.0
    # Exporters that the engine scrapes itself: URLs, or the URL of an http_sd service that lists them, or one on each
    # GPU node. Without any of these the use of GPUs is unknown.
    exporters: tuple[str, ...] = ()
    exporters_from: str = ""
    scrape_nodes: bool = False
    exporter_port: int = 9400
    exporter_path: str = "/metrics"
    scrape_seconds: float = 15.0
    # Channels and routes of alerts about budgets (see docs/notifications.md).
    notifications: NotifySettings = NotifySettings()
    # Address of the HTTP API, such as :8443; empty: it is not served. One that other machines can reach needs the two
    # PEM files, which are read again when they change.
    api_bind_address: str = ""
    api_tls_cert_file: str = ""
    api_tls_key_file: str = ""
    # Address of /metrics, /healthz and /readyz.
    metrics_bind_address: str = ":8080"
    leader_elect: bool = True
    lease_name: str = "kgwe-cost-engine"
    lease_namespace: str = "kgwe-system"
    lease_duration_seconds: int = 15
    renew_deadline_seconds: float = 10.0
    retry_period_seconds: float = 2.0
    log_level: str = "info"

    @property
    def rules(self) -> AttributionRules:
        return AttributionRules(
            self.team_labels,
            self.project_labels,
            self.cost_center_labels,
            self.experiment_labels,
            self.user_labels,
            tuple(each.rule for each in self.attribution_rules),
        )

    @property
    def bill_paths(self) -> tuple[Path, ...]:
        return tuple(map(Path, self.bill_files))

    @property
    def price_paths(self) -> tuple[Path, ...]:
        return tuple(map(Path, self.price_files))


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings; raise Permanent with the invalid key."""
    loaded = configuration.load(Settings, ENV_PREFIX, path, dict(overrides or {}))
    try:
        parse_method(loaded.split_method)
    except errors.Permanent as exc:
        raise errors.Permanent(f"settings: splitMethod: {exc}") from exc
    if not 0 < loaded.tracking_seconds < math.inf:
        raise errors.Permanent(f"settings: trackingSeconds must be above 0, not {loaded.tracking_seconds:g}")
    for name in loaded.live_prices:
        if not re.fullmatch(r"(aws|azure|gcp)/[a-z0-9-]+", name):
            raise errors.Permanent(
                f"settings: livePrices: {name!r} is not a cloud and a region, such as aws/us-east-1 (or azure, gcp)"
            )
    if loaded.grace_seconds < 0:
        raise errors.Permanent(f"settings: graceSeconds must not be negative, but is {loaded.grace_seconds}")
    return loaded
