"""`kgwe debug`: what explains a problem, in one file."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kgwe import terminal
from kgwe.apps.diagnostics import bundle as bundles
from kgwe.kube.client.client import KubeClient
from kgwe.model.units.phrasing import format_count
from kgwe.telemetry import logs

app = App(
    name="debug",
    help="Collect what explains a problem.",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe debug bundle                                   kgwe-debug.tar.gz in this directory
  kgwe debug bundle --output /tmp/case-17.tar.gz
  kgwe debug bundle --process-namespace kgwe-system --process-namespace kgwe-node""",
)


@app.command
def bundle(
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("kgwe-debug.tar.gz"),
    process_namespace: Annotated[tuple[str, ...], Parameter(negative="")] = ("kgwe-system", "kgwe-node"),
    log_file: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    kubeconfig: Annotated[Path | None, Parameter(env_var="KUBECONFIG")] = None,
) -> int:
    """Write logs, metrics, objects with their status, and versions into a tar.gz, without secrets.

    Secrets and ConfigMaps are not read. Values of environment variables, tokens, keys and passwords are replaced by
    [redacted]. What you may not read is listed in manifest.json with the reason.

    Parameters
    ----------
    output
        The file to write. Only you can read it.
    process_namespace
        Namespaces of KGWE's own pods.
    log_file
        More log files, such as those of processes that run outside of the cluster.
    kubeconfig
        Path of the kubeconfig file.
    """
    logs.configure(level="error")

    async def read() -> bundles.Bundle:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-debug") as client:
            return await bundles.collect(client, process_namespace)

    found = asyncio.run(read())
    for path in log_file:
        found.add_text(f"logs/{path.name}", path.read_text(errors="replace"))
    about = {"kgwe": importlib.metadata.version("kgwe"), "python": platform.python_version(), "at_s": int(time.time())}
    found.write(output, about)
    missing = (
        f"; {format_count(len(found.missing), 'part')} could not be read, see manifest.json" if found.missing else ""
    )
    terminal.write(f"{output}: {format_count(len(found.files), 'file')}{missing}\n")
    return 0
