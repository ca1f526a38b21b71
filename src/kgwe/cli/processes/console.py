"""`kgwe console`: serves the console, and signs a browser in."""

from __future__ import annotations

import asyncio
import json
import webbrowser
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.cli.processes import flags  # noqa: TC001 - read by cyclopts when it runs

app = App(
    name="console",
    help="""Serve the console and its HTTP API over HTTPS.

Runs until SIGTERM or Ctrl-C. Users are those of Kubernetes: each sees what RBAC lets it list. `kgwe console open` signs
your browser in with the identity of your kubeconfig.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe console --kubeconfig ~/.kube/config
  kgwe console --cost-store postgresql://kgwe@db/kgwe --optimizer-address optimizer:50051
  kgwe console open --url https://kgwe.example.com""",
)


@app.default
def console(
    *,
    kubeconfig: flags.Kubeconfig = None,
    config: Path | None = None,
    bind_address: str | None = None,
    tls_cert_file: str | None = None,
    tls_key_file: str | None = None,
    cost_store: str | None = None,
    optimizer_address: str | None = None,
    record_directory: str | None = None,
    metrics_bind_address: flags.MetricsBindAddress = None,
    log_level: flags.LogLevel = None,
) -> None:
    """Run the console.

    Parameters
    ----------
    config
        Settings file (YAML). Each key can also be set as KGWE_CONSOLE_<KEY>.
    bind_address
        Address of the pages and the API, such as :8443.
    tls_cert_file
        Certificate (PEM). Without one the console signs a certificate of its own, and browsers warn.
    tls_key_file
        Key of the certificate (PEM).
    cost_store
        The cost engine's store: a path of a SQLite file, or postgresql://… .
    optimizer_address
        Address of the optimizer's gRPC service.
    record_directory
        Directory of the scheduler's decision records.
    """
    from kgwe.apps.console import main as process  # noqa: PLC0415 - loads Starlette and NumPy
    from kgwe.apps.console import settings  # noqa: PLC0415 - same
    from kgwe.cli.processes.console_answers import WhatIfAnswers  # noqa: PLC0415 - same

    overrides = {
        "bind_address": bind_address,
        "tls_cert_file": tls_cert_file,
        "tls_key_file": tls_key_file,
        "cost_store": cost_store,
        "optimizer_address": optimizer_address,
        "record_directory": record_directory,
        "metrics_bind_address": metrics_bind_address,
        "log_level": log_level,
    }
    asyncio.run(process.serve(settings.load(config, overrides), kubeconfig, WhatIfAnswers()))


@app.command(
    name="open",
    help_epilogue="""Examples:
  kgwe console open                                  the console of `make run`
  kgwe console open --url https://kgwe.example.com
  kgwe console open --no-browser                     print the link only""",
)
def open_console(
    *,
    url: Annotated[str, Parameter(env_var="KGWE_CONSOLE_URL")] = "https://127.0.0.1:8443",
    kubeconfig: flags.Kubeconfig = None,
    context: str | None = None,
    browser: bool = True,
    certificate_authority: Path | None = None,
    insecure_skip_tls_verify: bool = False,
) -> int:
    """Sign a browser in with your identity in the kubeconfig: a token, a client certificate or a credential plugin.

    The link works once, within a minute.

    Parameters
    ----------
    url
        Address of the console.
    context
        Context of the kubeconfig. Default: its current context.
    browser
        Open a browser; otherwise only print the link.
    certificate_authority
        Authority of the console's certificate (PEM). Default: those of this machine and of the kubeconfig.
    insecure_skip_tls_verify
        Do not check the console's certificate. Others could read your token.
    """
    from kgwe.cli.processes.console_link import make_link  # noqa: PLC0415 - the overview does without it

    link = make_link(
        url,
        kubeconfig,
        context=context,
        authority=certificate_authority,
        verify=not insecure_skip_tls_verify,
    )
    terminal.write(f"{link.url}\nSigns you in as {link.user}, once, within {link.seconds:.0f} s.\n")
    if browser and not webbrowser.open(link.url):
        terminal.write("No browser was found: open the link yourself.\n")
    return 0


@app.command(show=False)
def openapi(path: Path, /, *, check: bool = False) -> int:
    """Write the OpenAPI document of the console's API, or compare it with the file.

    Parameters
    ----------
    path
        File of the document.
    check
        Only compare.
    """
    text = json.dumps(_make_document(), indent=1) + "\n"
    if not check:
        path.write_text(text, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        raise errors.Permanent(f"{path} is outdated: run `make crds`")
    return 0


def _make_document() -> dict[str, Any]:
    from kgwe.apps.console.api import Sources, make_console_api  # noqa: PLC0415 - loads Starlette and NumPy
    from kgwe.apps.console.cluster_watch import ClusterWatch  # noqa: PLC0415 - same
    from kgwe.cli.processes.console_answers import WhatIfAnswers  # noqa: PLC0415 - same

    nothing: Any = None
    sources = Sources(ClusterWatch(nothing), WhatIfAnswers(), _open_nothing, _open_nothing)
    return make_console_api(sources, nothing, nothing, nothing).api.document


def _open_nothing() -> Any:
    raise errors.Transient("there is no ledger")
