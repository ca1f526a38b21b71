"""`kgwe optimizer`: runs the optimizer."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cyclopts import App

from kgwe.cli.processes import flags  # noqa: TC001 - read by cyclopts when it runs

app = App(
    name="optimizer",
    help="""Keep the history of GPU workloads, predict run times, and find GPUs that are wasted.

Runs until SIGTERM or Ctrl-C. Serves gRPC on 127.0.0.1:50051 and keeps its history in a SQLite file or in PostgreSQL.
Usage comes from the exporters of the nodes, or from Prometheus (PROMETHEUS_URL). The scheduler works without it.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe optimizer --store /var/lib/kgwe/optimizer.db
  kgwe optimizer --store postgresql://kgwe@db/kgwe --prometheus-url http://prometheus:9090
  kgwe optimizer --kubeconfig "$(kgwe local kubeconfig --path)" --exporters-from http://127.0.0.1:9400/targets""",
)


@app.default
def optimizer(
    *,
    kubeconfig: flags.Kubeconfig = None,
    config: Path | None = None,
    store: str | None = None,
    grpc_bind_address: str | None = None,
    prometheus_url: str | None = None,
    exporters_from: str | None = None,
    metrics_bind_address: flags.MetricsBindAddress = None,
    leader_elect: flags.LeaderElect = None,
    log_level: flags.LogLevel = None,
) -> None:
    """Run the optimizer.

    Parameters
    ----------
    config
        Settings file (YAML). Each key can also be set as KGWE_OPTIMIZER_<KEY>.
    store
        Path of the SQLite file, or postgresql://… .
    grpc_bind_address
        Address of the gRPC service. Other addresses than loopback need certificates (tlsCertFile, …).
    prometheus_url
        Read usage from this Prometheus instead of scraping the exporters.
    exporters_from
        URL of a list of exporters in the format of Prometheus' http_sd.
    """
    from kgwe.apps.optimizer import main as process  # noqa: PLC0415 - loads gRPC, NumPy and SQLAlchemy
    from kgwe.apps.optimizer import settings  # noqa: PLC0415

    overrides = {
        "store": store,
        "grpc_bind_address": grpc_bind_address,
        "prometheus_url": prometheus_url,
        "exporters_from": exporters_from,
        "metrics_bind_address": metrics_bind_address,
        "leader_elect": leader_elect,
        "log_level": log_level,
    }
    asyncio.run(process.serve(settings.load(config, overrides), kubeconfig))
