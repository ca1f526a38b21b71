"""Metrics of the webhook."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kgwe.telemetry.reconciles import ReconcileMetrics

_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0)


class Metrics:
    """One registry per process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "kgwe_webhook_requests",
            "Pods that were asked about, by outcome: changed, unchanged, error or malformed",
            ["outcome"],
            registry=registry,
        )
        self.seconds = Histogram(
            "kgwe_webhook_seconds", "Seconds to answer for one pod", buckets=_BUCKETS, registry=registry
        )
        self.issued = Counter("kgwe_certificates_issued", "Certificates issued, by name", ["name"], registry=registry)
        self.expires = Gauge(
            "kgwe_certificate_expires_timestamp_seconds",
            "When a certificate ends, by name",
            ["name"],
            registry=registry,
        )
        self.failures = Counter(
            "kgwe_certificate_failures", "Rounds in which certificates could not be kept current", registry=registry
        )
        self.rounds = ReconcileMetrics(registry, "kgwe-webhook")
        for outcome in ("changed", "unchanged", "error", "malformed"):
            self.requests.labels(outcome)
