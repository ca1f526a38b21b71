"""`kgwe webhook`: runs the admission webhook."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cyclopts import App

from kgwe.cli.processes import flags  # noqa: TC001 - read by cyclopts when it runs

app = App(
    name="webhook",
    help="""Give pods smaller GPU requests and seats while they are created, and keep KGWE's certificates.

Runs until SIGTERM or Ctrl-C. Clusters with Kubernetes 1.36 or later do the same without a process, by the policies of
deploy/rightsizing.yaml and deploy/admission.yaml. A pod is always created: while no replica answers, it keeps its
request.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe webhook --cert-dir /var/run/kgwe-webhook
  kgwe webhook --no-manage-certificates --cert-dir /etc/cert-manager/webhook
  kgwe webhook --kubeconfig "$(kgwe local kubeconfig --path)" --bind-address 127.0.0.1:9443 --cert-dir certs""",
)


@app.default
def webhook(
    *,
    kubeconfig: flags.Kubeconfig = None,
    config: Path | None = None,
    bind_address: str | None = None,
    cert_dir: Path | None = None,
    manage_certificates: bool | None = None,
    metrics_bind_address: flags.MetricsBindAddress = None,
    log_level: flags.LogLevel = None,
) -> None:
    """Run the webhook.

    Parameters
    ----------
    config
        Settings file (YAML). Each key can also be set as KGWE_WEBHOOK_<KEY>.
    bind_address
        Address of the webhook.
    cert_dir
        Folder with tls.crt and tls.key.
    manage_certificates
        Whether KGWE has an authority of its own and writes these files.
    """
    from kgwe.apps.webhook import main as process  # noqa: PLC0415 - loads cryptography
    from kgwe.apps.webhook import settings  # noqa: PLC0415

    overrides = {
        "bind_address": bind_address,
        "cert_dir": str(cert_dir) if cert_dir is not None else None,
        "manage_certificates": manage_certificates,
        "metrics_bind_address": metrics_bind_address,
        "log_level": log_level,
    }
    asyncio.run(process.serve(settings.load(config, overrides), kubeconfig))
