"""`kgwe autoscaler`: runs the autoscaler."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cyclopts import App

from kgwe.cli.processes import flags  # noqa: TC001 - read by cyclopts when it runs

app = App(
    name="autoscaler",
    help="""Buy nodes for workloads that found no place, and remove nodes that nothing needs.

Runs until SIGTERM or Ctrl-C. Follows the AutoscalingPolicies of the cluster: buys whole gangs or nothing, counts nodes
whose GPUs have not arrived yet, and removes a node only if every pod on it has a place elsewhere.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe autoscaler --cluster prod-1
  kgwe autoscaler --dry-run --prices prices.yaml
  kgwe autoscaler --kubeconfig "$(kgwe local kubeconfig --path)" --no-leader-elect""",
)


@app.default
def autoscaler(
    *,
    kubeconfig: flags.Kubeconfig = None,
    config: Path | None = None,
    cluster: str | None = None,
    prices: tuple[str, ...] | None = None,
    dry_run: bool | None = None,
    reconcile_seconds: float | None = None,
    metrics_bind_address: flags.MetricsBindAddress = None,
    leader_elect: flags.LeaderElect = None,
    log_level: flags.LogLevel = None,
) -> None:
    """Run the autoscaler.

    Parameters
    ----------
    config
        Settings file (YAML). Each key can also be set as KGWE_AUTOSCALER_<KEY>.
    cluster
        Name of this cluster at the provider. Instances of other clusters are never touched.
    prices
        Price files (CSV or YAML); repeat it for several.
    dry_run
        Show plans in the status of policies, and buy or remove nothing.
    reconcile_seconds
        Seconds between two rounds.
    """
    from kgwe.apps.autoscaler import main as process  # noqa: PLC0415 - loads NumPy
    from kgwe.apps.autoscaler import settings  # noqa: PLC0415

    overrides = {
        "cluster": cluster,
        "price_files": prices,
        "dry_run": dry_run,
        "reconcile_seconds": reconcile_seconds,
        "metrics_bind_address": metrics_bind_address,
        "leader_elect": leader_elect,
        "log_level": log_level,
    }
    asyncio.run(process.serve(settings.load(config, overrides), kubeconfig))
