"""`kgwe bench agent`: what the agent costs a node."""

from __future__ import annotations

from cyclopts import App

from kgwe.bench.nodes import agent as bench
from kgwe.cli.bench.command import INTERRUPTED, Json, show, to_end
from kgwe.local.host import progress

app = App(
    name="agent",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench agent
  kgwe bench agent --seconds 300 --json
  kgwe bench agent --standalone          without an API server""",
)


@app.default
def run(*, seconds: float = 60.0, warm_up: float = 15.0, standalone: bool = False, json: Json = False) -> int:
    """Run an agent on simulated hardware with its usual settings, and measure its CPU, memory and writes.

    Eight whole cards, then eight cards cut into 56 MIG instances; instruments every 5 s, one scrape every 15 s.

    Parameters
    ----------
    seconds
        How long each machine is measured.
    warm_up
        Seconds before that.
    standalone
        Without a cluster; writes are then not measured.
    """
    options = bench.Options(seconds=seconds, warm_up=warm_up, standalone=standalone)
    measured = to_end(lambda: bench.run(options, progress.for_stream()))
    if measured is None:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0
