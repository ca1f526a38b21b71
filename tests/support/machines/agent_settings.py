"""Settings of an agent that looks often."""

from __future__ import annotations

from kgwe.apps.agent.settings import Settings

QUICK = Settings(
    node_name="n1",
    standalone=True,
    grpc_bind_address="127.0.0.1:0",
    exporter_bind_address="",
    telemetry_interval_seconds=0.02,
    discovery_interval_seconds=0.1,
    driver_retry_seconds=0.01,
    enable_health=False,
    enable_mig=False,
    enable_pod_resources=False,
)
