"""`kgwe cost-engine`: runs the cost engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cyclopts import App

from kgwe.cli.processes import flags  # noqa: TC001 - read by cyclopts when it runs

app = App(
    name="cost-engine",
    help="""Meter what GPU nodes cost and which pods held them, into a ledger.

Runs until SIGTERM or Ctrl-C. Keeps its ledger in a SQLite file or in PostgreSQL. Reads nodes, pods, GPUNodes and
ResourceClaims, and writes nothing to the cluster but its Lease.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe cost-engine --store /var/lib/kgwe/cost.db --prices prices.yaml
  kgwe cost-engine --store postgresql://kgwe@db/kgwe --split-method fixed
  kgwe cost-engine --kubeconfig "$(kgwe local kubeconfig --path)" --no-leader-elect""",
)


@app.default
def cost_engine(
    *,
    kubeconfig: flags.Kubeconfig = None,
    config: Path | None = None,
    store: str | None = None,
    prices: tuple[str, ...] | None = None,
    split_method: str | None = None,
    metrics_bind_address: flags.MetricsBindAddress = None,
    leader_elect: flags.LeaderElect = None,
    log_level: flags.LogLevel = None,
) -> None:
    """Run the cost engine.

    Parameters
    ----------
    config
        Settings file (YAML). Each key can also be set as KGWE_COST_<KEY>.
    store
        Path of the SQLite file, or postgresql://… .
    prices
        Price files (CSV or YAML); repeat it for several.
    split_method
        How a node's price is split: gpu-only, market or fixed.
    """
    from kgwe.apps.cost import main as process  # noqa: PLC0415 - loads NumPy and SQLAlchemy
    from kgwe.apps.cost import settings  # noqa: PLC0415

    overrides = {
        "store": store,
        "price_files": prices,
        "split_method": split_method,
        "metrics_bind_address": metrics_bind_address,
        "leader_elect": leader_elect,
        "log_level": log_level,
    }
    asyncio.run(process.serve(settings.load(config, overrides), kubeconfig))
