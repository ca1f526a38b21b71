"""`kgwe local prometheus`: a real Prometheus beside a local cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import terminal
from kgwe.local.cluster.cluster import LocalCluster
from kgwe.local.host import progress
from kgwe.local.prometheus import binary, server

app = App(
    name="prometheus",
    help="Run a real Prometheus that scrapes the simulated GPU nodes.",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe local prometheus up                     start it; a missing 3.x is built once
  kgwe local prometheus up --version-line 2    use the 2.x of the distribution
  kgwe local prometheus status
  kgwe local prometheus down
  kgwe local prometheus promtool               print the path of promtool; it is built once""",
)

Name = Annotated[str, Parameter(name=["--name", "-n"], help="Name of the local cluster.")]
Output = Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="Output format.")]


@app.command
def up(*, name: Name = "kgwe", version_line: Literal[2, 3] | None = None, interval_s: float = 15.0) -> int:
    """Start Prometheus beside the cluster, and the exporter of the simulated nodes if it does not run.

    Parameters
    ----------
    version_line
        2 or 3. Default: the one on this machine, else 3 is built.
    interval_s
        Seconds between two scrapes.
    """
    cluster = LocalCluster.attach(name)
    url = server.start(cluster, line=version_line, interval_s=interval_s, progress=progress.for_stream())
    terminal.write(f"Prometheus is ready at {url}\n  export PROMETHEUS_URL={url}\n")
    return 0


@app.command
def down(*, name: Name = "kgwe") -> int:
    """Stop Prometheus. Its data stays until the cluster is removed."""
    cluster = LocalCluster.attach(name)
    terminal.write("Prometheus is stopped.\n" if server.stop(cluster) else "Prometheus does not run.\n")
    return 0


@app.command
def status(*, name: Name = "kgwe", output: Output = "table") -> int:
    """Show whether Prometheus runs and how many targets respond. Exit code 0 if it runs, 1 otherwise."""
    found = server.examine(LocalCluster.attach(name))
    if output == "json":
        terminal.write(msgspec.json.format(msgspec.json.encode(asdict(found)), indent=2).decode() + "\n")
    elif found.problem:
        terminal.write(f"Prometheus {found.problem}.\n")
    else:
        terminal.write(
            f"Prometheus {found.version} runs at {found.url} (pid {found.pid}):"
            f" {found.targets_up} targets respond, {found.targets_down} do not\n"
        )
    return 0 if found.problem is None else 1


@app.command
def promtool() -> int:
    """Print the path of promtool, which checks and tests rules. A missing one is built, which takes some minutes."""
    terminal.write(f"{binary.ensure_promtool(progress.for_stream())}\n")
    return 0
