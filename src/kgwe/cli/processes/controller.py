"""`kgwe controller`: runs only GPUWorkloads, for clusters whose kube-scheduler cannot use an extender."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from kgwe.cli.processes import flags, scheduler

app = App(
    name="controller",
    help="""Run only GPUWorkloads: `kgwe scheduler` without the extender.

Their pods are pinned to planned nodes, so kube-scheduler needs no configuration. Other GPU pods and externally created
gangs are counted as used capacity and not placed.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe controller                                       in a cluster, as its service account
  kgwe controller --kubeconfig "$(kgwe local kubeconfig --path)"   against a local cluster
  kgwe controller --no-leader-elect --metrics-bind-address 127.0.0.1:0""",
)


@app.default
def controller(
    *,
    kubeconfig: flags.Kubeconfig = None,
    config: Path | None = None,
    metrics_bind_address: flags.MetricsBindAddress = None,
    leader_elect: flags.LeaderElect = None,
    default_image: flags.DefaultImage = None,
    log_level: flags.LogLevel = None,
) -> None:
    """Run the controller.

    Parameters
    ----------
    config
        Settings file (YAML). Each key can also be set as KGWE_SCHEDULER_<KEY>.
    """
    scheduler.run(
        config,
        kubeconfig,
        extender_bind_address="",
        metrics_bind_address=metrics_bind_address,
        leader_elect=leader_elect,
        default_image=default_image,
        log_level=log_level,
    )
