"""Settings of the scheduler: flag, environment (KGWE_SCHEDULER_<KEY>), file, default, in this order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kgwe import errors
from kgwe.apps import configuration
from kgwe.cluster import names
from kgwe.costing.attribution import AttributionRules
from kgwe.costing.split import parse_method
from kgwe.telemetry import http, tls

if TYPE_CHECKING:
    from collections.abc import Mapping

ENV_PREFIX = "KGWE_SCHEDULER_"
_RULES = AttributionRules()
_LONGEST_HOLD_S = 10.0


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    # Container for workloads that bring no podTemplate. It gets MODEL_NAME and GPU_COUNT.
    default_image: str = names.DEFAULT_IMAGE
    # Address of /metrics, /healthz and /readyz.
    metrics_bind_address: str = ":8080"
    # Address of the extender that kube-scheduler calls; empty: none is served, only GPUWorkloads are planned. One that
    # other machines can reach needs the three files below.
    extender_bind_address: str = "127.0.0.1:8888"
    # PEM files: with all three the extender speaks HTTPS and asks its clients for a certificate of the client CA. They
    # are read again when they change.
    extender_tls_cert_file: str = ""
    extender_tls_key_file: str = ""
    extender_tls_client_ca_file: str = ""
    # Clients that are let in, by common name or alternative name of their certificate.
    extender_tls_client_names: tuple[str, ...] = ("system:kube-scheduler",)
    # Address of the webhook that gives pods of gangs their seats while they are created (deploy/gang-seats.yaml), such
    # as :9444; empty: none. It has the certificate of the extender. Clients need a certificate of the extender's client
    # CA with one of these names; without names any client may call, which only a loopback address allows.
    admission_bind_address: str = ""
    admission_client_names: tuple[str, ...] = ("kube-apiserver",)
    # Seconds, at most 10, for which the seats of a gang are kept for pods that are still being created.
    offer_hold_seconds: float = 10.0
    # The kube-scheduler that asks the extender, if it is not the cluster's own: pods of GPUWorkloads name it in
    # schedulerName, unless their template names one.
    scheduler_name: str = ""
    # Whether the extender binds GPU pods itself, so that the planned cards are written with the binding.
    extender_binds: bool = False
    # Whether the extender answers /debug/snapshot: all nodes, free GPUs, holders and gangs.
    debug_snapshot: bool = False
    # Seconds a place is kept for a pod that kube-scheduler was told to put there and has not bound.
    assume_seconds: float = 30.0
    # With several replicas exactly one acts. Off saves the lease writes when there is only ever one.
    leader_elect: bool = True
    lease_name: str = names.SCHEDULER_LEASE
    lease_namespace: str = names.SCHEDULER_LEASE_NAMESPACE
    # Seconds. After a crash a standby takes over within lease_duration + retry_period.
    lease_duration_seconds: int = 7
    renew_deadline_seconds: float = 5.0
    retry_period_seconds: float = 1.0
    # Workloads reconciled at the same time. More helps only while the API server has room.
    workers: int = 16
    # Seconds a pod may be refused by kube-scheduler on its planned node before it is planned again elsewhere.
    placement_timeout_seconds: float = 30.0
    # Seconds a Job may be without any pod, or its pod without any scheduler's word, before it is taken back. Long:
    # a control plane under load is slow, not broken.
    unscheduled_timeout_seconds: float = 300.0
    # Seconds a node that refused a workload is avoided for it.
    avoid_seconds: float = 300.0
    # Least seconds between two rewrites of a waiting workload's message when only its numbers changed.
    message_interval_seconds: float = 30.0
    # Seconds before a status is written that the next step is likely to replace: "waits" before room is found at once,
    # "scheduled" before the pod runs.
    status_settle_seconds: float = 1.0
    # Seconds a node that is lost, or a card that is unhealthy, is given before its work is moved; and a node whose own
    # kubelet says that it is not ready.
    recovery_gather_seconds: float = 1.0
    recovery_not_ready_seconds: float = 10.0
    # When more than this part of the nodes (and at least five) is down, nothing is moved for so many seconds, and twice
    # as long each time it gets worse: it is more likely the network than the nodes.
    recovery_storm_share: float = 0.33
    recovery_storm_hold_seconds: float = 30.0
    # Seconds that preempted pods which declare a checkpoint have for it. An announced interruption has its own time.
    checkpoint_seconds: float = 30.0
    # Pods that may be on their way to new places at the same time.
    recovery_moves: int = 64
    # Seconds until the API server is asked again which kinds of external gangs it has (JobSet, Volcano, ...).
    group_kinds_seconds: float = 60.0
    # Seconds an externally created gang may be incomplete before Events on its pods and their owner say so.
    gang_notice_seconds: float = 10.0
    # A gang that no leaf holds is planned together with gangs whose pods are still being created: planning waits until
    # no pod has come for so many seconds, and no longer than the limit. A limit of 0 plans at once.
    gang_gather_quiet_seconds: float = 0.3
    gang_gather_limit_seconds: float = 4.0
    # Least seconds between two writes of one TopologyDomain's status, and between two looks at how work ended there.
    domain_status_seconds: float = 30.0
    # Whether plans use predicted run times beside declared ones, for backfill and start estimates.
    enable_predictions: bool = True
    # Address of the optimizer's gRPC service, such as kgwe-optimizer:50051; empty: the scheduler predicts from the
    # ended workloads that are still in the API. An address on another machine needs the three PEM files.
    optimizer_address: str = ""
    optimizer_tls_cert_file: str = ""
    optimizer_tls_key_file: str = ""
    optimizer_tls_ca_file: str = ""
    # Seconds between two refreshes of predicted run times, and seconds to wait for one answer. Planning never waits.
    optimizer_refresh_seconds: float = 30.0
    optimizer_timeout_seconds: float = 5.0
    # Whether GPUBudgets are enforced. Prices and labels must be those of the cost engine; see docs/budgets.md.
    enable_budgets: bool = True
    price_files: tuple[str, ...] = ()
    builtin_prices: bool = True
    split_method: str = "market"
    team_labels: tuple[str, ...] = _RULES.team
    project_labels: tuple[str, ...] = _RULES.project
    cost_center_labels: tuple[str, ...] = _RULES.cost_center
    experiment_labels: tuple[str, ...] = _RULES.experiment
    user_labels: tuple[str, ...] = _RULES.user
    # The run time of workloads of which nothing is declared or predicted, in seconds, for what they encumber.
    budget_unknown_seconds: int = 86_400
    # Seed of the `random` strategy; unset means a new one at each start.
    random_seed: int | None = None
    # OTLP/HTTP collector of decision spans, such as http://collector:4318; empty: none. And the share that is sent.
    otlp_endpoint: str = ""
    trace_share: float = 0.01
    # Where every decision is written down for `kgwe replay`; empty: nowhere. And how many MB are kept, at least 8.
    record_directory: str = ""
    record_max_mb: int = 256
    log_level: str = "info"
    # Log what keeps the event loop from its other work for longer than so many milliseconds; 0: do not look.
    log_stalls_ms: float = 0.0

    @property
    def attribution(self) -> AttributionRules:
        return AttributionRules(
            self.team_labels, self.project_labels, self.cost_center_labels, self.experiment_labels, self.user_labels
        )

    @property
    def extender_tls(self) -> tls.Files | None:
        """None: plain HTTP."""
        if not self.extender_tls_cert_file:
            return None
        certificate, key = Path(self.extender_tls_cert_file), Path(self.extender_tls_key_file)
        authority, names = Path(self.extender_tls_client_ca_file), frozenset(self.extender_tls_client_names)
        return tls.Files(certificate, key, authority, names)

    @property
    def admission_tls(self) -> tls.Files | None:
        """None: pods of gangs get their seats by a write."""
        if not self.admission_bind_address:
            return None
        certificate, key = Path(self.extender_tls_cert_file), Path(self.extender_tls_key_file)
        names = frozenset(self.admission_client_names)
        return tls.Files(certificate, key, Path(self.extender_tls_client_ca_file) if names else None, names)


def load(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read settings; Permanent with the path of the bad key when they do not make sense."""
    loaded = configuration.load(Settings, ENV_PREFIX, path, overrides)
    if loaded.extender_bind_address:
        _check_extender(loaded)
    if not 0 < loaded.offer_hold_seconds <= _LONGEST_HOLD_S:
        raise errors.Permanent(f"settings: offerHoldSeconds must be above 0 and at most {_LONGEST_HOLD_S:g}")
    if loaded.admission_bind_address:
        _check_admission(loaded)
    try:
        parse_method(loaded.split_method)
    except errors.Permanent as exc:
        raise errors.Permanent(f"settings: splitMethod: {exc}") from exc
    if loaded.budget_unknown_seconds <= 0:
        raise errors.Permanent("settings: budgetUnknownSeconds must be above 0")
    return loaded


def _check_extender(settings: Settings) -> None:
    """Any client that reaches the extender can have GPUs reserved, so other machines must prove who they are."""
    files = (
        settings.extender_tls_cert_file,
        settings.extender_tls_key_file,
        settings.extender_tls_client_ca_file,
    )
    named = "extenderTlsCertFile, extenderTlsKeyFile and extenderTlsClientCaFile"
    if any(files) and not all(files):
        raise errors.Permanent(f"settings: {named} go together: both sides show certificates")
    if all(files) and not settings.extender_tls_client_names:
        raise errors.Permanent("settings: extenderTlsClientNames is empty, so no client would be let in")
    address = http.Address.parse(settings.extender_bind_address)
    if not all(files) and not address.is_loopback:
        raise errors.Permanent(
            f"settings: extenderBindAddress {settings.extender_bind_address} can be reached by other machines, which "
            f"needs {named}; without them only a loopback address is served, such as 127.0.0.1:{address.port}"
        )


def _check_admission(settings: Settings) -> None:
    """Any client that reaches the webhook can have seats reserved for some seconds."""
    if not settings.extender_tls_cert_file:
        raise errors.Permanent(
            "settings: admissionBindAddress needs extenderTlsCertFile, extenderTlsKeyFile and extenderTlsClientCaFile:"
            " the API server calls webhooks over HTTPS only"
        )
    if not settings.admission_client_names and not http.Address.parse(settings.admission_bind_address).is_loopback:
        raise errors.Permanent(
            f"settings: admissionBindAddress {settings.admission_bind_address} can be reached by other machines, which"
            " needs admissionClientNames: the names in the client certificate of the API server"
        )
