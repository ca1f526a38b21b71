"""`kgwe controller`: run the GPUWorkload controller."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from kgwe.apps.scheduler import main as process
from kgwe.apps.scheduler import settings

if TYPE_CHECKING:
    from collections.abc import Callable

app = App(
    name="controller",
    help="""Run GPUWorkloads: find each a node, create its Job, follow it to the end.

Runs until SIGTERM or Ctrl-C. Several replicas may run at once: one acts, the others stand by.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe controller                                       in a cluster, as its service account
  kgwe controller --kubeconfig "$(kgwe local kubeconfig --path)"   against a local cluster
  kgwe controller --config settings.yaml --log-level debug
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
        Settings file (YAML); every key can also be given as KGWE_CONTROLLER_<KEY>.
    metrics_bind_address
        Where /metrics, /healthz and /readyz are served, such as :8080; port 0 takes a free one.
    leader_elect
        Hold a Lease while acting, so that only one of several replicas does.
    default_image
        Container image of workloads that bring no podTemplate.
    log_level
        debug, info, warning or error.
    """
    overrides = {
        "metrics_bind_address": metrics_bind_address,
        "leader_elect": leader_elect,
        "default_image": default_image,
        "log_level": log_level,
    }
    loaded = settings.load(config, overrides)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(process.serve(loaded, kubeconfig))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - optional: absent on other systems
    except ImportError:
        return None
    return uvloop.new_event_loop
