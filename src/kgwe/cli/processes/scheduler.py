"""`kgwe scheduler`: runs the extender, the planner and the GPUWorkload controller in one process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from kgwe import terminal
from kgwe.apps.scheduler import main as process
from kgwe.apps.scheduler import settings, signing_key
from kgwe.cli.processes import flags  # noqa: TC001 - read by cyclopts when it runs
from kgwe.cluster.workload.signatures import Signer
from kgwe.kube.client.client import KubeClient
from kgwe.kube.translate import scheduler_config

if TYPE_CHECKING:
    from collections.abc import Callable

app = App(
    name="scheduler",
    help="""Place GPUWorkloads, externally created gangs and single GPU pods.

Runs until SIGTERM or Ctrl-C. Of several replicas one is the leader, the others are on standby. kube-scheduler still
binds pods; it calls this process as an extender for GPU pods (see `kgwe scheduler config`).""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe scheduler                                       in a cluster, as its service account
  kgwe scheduler --kubeconfig "$(kgwe local kubeconfig --path)"   against a local cluster
  kgwe scheduler --config settings.yaml --log-level debug
  kgwe scheduler config --scheduler-kubeconfig /etc/kubernetes/scheduler.conf > kgwe.yaml    both on one machine
  kgwe scheduler config --url https://HOST:8888 --scheduler-kubeconfig /etc/kubernetes/scheduler.conf \\
    --ca-file /etc/kubernetes/kgwe/ca.crt --cert-file /etc/kubernetes/kgwe/client.crt \\
    --key-file /etc/kubernetes/kgwe/client.key > kgwe.yaml""",
)


@app.default
def scheduler(
    *,
    kubeconfig: flags.Kubeconfig = None,
    config: Path | None = None,
    extender_bind_address: str | None = None,
    metrics_bind_address: flags.MetricsBindAddress = None,
    leader_elect: flags.LeaderElect = None,
    default_image: flags.DefaultImage = None,
    log_level: flags.LogLevel = None,
) -> None:
    """Run the scheduler.

    Parameters
    ----------
    config
        Settings file (YAML). Each key can also be set as KGWE_SCHEDULER_<KEY>.
    extender_bind_address
        Address of the extender, such as 127.0.0.1:8888; only the leader listens. An address that other machines can
        reach needs TLS certificates (extenderTlsCertFile and related keys).
    """
    run(
        config,
        kubeconfig,
        extender_bind_address=extender_bind_address,
        metrics_bind_address=metrics_bind_address,
        leader_elect=leader_elect,
        default_image=default_image,
        log_level=log_level,
    )


@app.command
def config(
    *,
    url: str = "http://127.0.0.1:8888",
    binds: bool = False,
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
    server_name: str = "",
    scheduler_kubeconfig: str = "",
    ignorable: bool = False,
) -> None:
    """Print a kube-scheduler configuration that calls KGWE for GPU pods.

    Parameters
    ----------
    url
        URL of the extender; https:// unless both run on one machine.
    binds
        Let the extender bind pods, which records the planned GPUs on the pod. Requires the setting extenderBinds.
    ca_file
        Path of the extender's certificate authority on kube-scheduler's machine.
    cert_file
        Path of kube-scheduler's client certificate on its machine. Its name must be one of extenderTlsClientNames.
    key_file
        Path of the key of that certificate.
    server_name
        Name in the extender's certificate, if the URL has another one, such as the address of a Service.
    scheduler_kubeconfig
        Path of kube-scheduler's kubeconfig on its machine; with kubeadm /etc/kubernetes/scheduler.conf.
        kube-scheduler ignores --kubeconfig if it has --config. Omit it if kube-scheduler uses a service account.
    ignorable
        Let kube-scheduler place GPU pods without KGWE while KGWE does not respond. Gangs may then start partially.
    """
    named = ca_file or cert_file or key_file
    tls = scheduler_config.ClientFiles(ca_file, cert_file, key_file, server_name) if named else None
    content = scheduler_config.render_config(
        url, binds=binds, tls=tls, ignorable=ignorable, kubeconfig=scheduler_kubeconfig
    )
    terminal.write(content)


@app.command(
    name="rotate-key",
    help_epilogue="""Examples:
  kgwe scheduler rotate-key
  kgwe scheduler rotate-key --kubeconfig "$(kgwe local kubeconfig --path)"   on a local cluster""",
)
def rotate_key(*, kubeconfig: flags.Kubeconfig = None, namespace: str = "kgwe-system") -> None:
    """Sign decisions with a new key. Decisions signed with the previous key remain valid.

    Parameters
    ----------
    namespace
        Namespace of the scheduler's Lease and key.
    """
    asyncio.run(_rotate(kubeconfig, namespace))
    terminal.write(f"Secret {namespace}/{signing_key.NAME} has a new key; all replicas use it within 30 seconds\n")


async def _rotate(kubeconfig: Path | None, namespace: str) -> None:
    async with KubeClient.connect(kubeconfig) as client:
        await signing_key.SigningKeys(client, Signer(), namespace).rotate()


def run(file: Path | None, kubeconfig: Path | None, **overrides: Any) -> None:
    loaded = settings.load(file, overrides)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(process.serve(loaded, kubeconfig))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - optional: absent on other systems
    except ImportError:
        return None
    return uvloop.new_event_loop
