"""`kgwe controller`: GPUWorkloads alone, for clusters whose kube-scheduler cannot be told of an extender."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kgwe.cli import scheduler

app = App(
    name="controller",
    help="""Run GPUWorkloads alone: as `kgwe scheduler`, without the extender.

Their pods are pinned to planned nodes, so kube-scheduler needs no configuration; plain pods and gangs of other systems
are counted and otherwise left alone.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe controller                                       in a cluster, as its service account
  kgwe controller --kubeconfig "$(kgwe local kubeconfig --path)"   against a local cluster
  kgwe controller --no-leader-elect --metrics-bind-address 127.0.0.1:0""",
)


@app.default
def controller(
    *,
    kubeconfig: Annotated[Path | None, Parameter(env_var="KUBECONFIG")] = None,
    config: Path | None = None,
    metrics_bind_address: str | None = None,
    leader_elect: bool | None = None,
    default_image: str | None = None,
    log_level: str | None = None,
) -> None:
    """Run the controller.

    Parameters
    ----------
    kubeconfig
        How to reach the API server; inside a cluster the service account is used.
    config
        Settings file (YAML); every key can also be given as KGWE_SCHEDULER_<KEY>.
    metrics_bind_address
        Where /metrics, /healthz and /readyz are served, such as :8080; port 0 takes a free one.
    leader_elect
        Hold a Lease while acting, so that only one of several replicas does.
    default_image
        Container image of workloads that bring no podTemplate.
    log_level
        debug, info, warning or error.
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
