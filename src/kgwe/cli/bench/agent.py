"""`kgwe bench agent`: measures the CPU, memory and API writes of the agent."""

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
  kgwe bench agent --standalone          run without an API server""",
)


@app.default
def run(*, seconds: float = 60.0, warm_up: float = 15.0, standalone: bool = False, json: Json = False) -> int:
    """Run an agent with default settings on simulated hardware, and measure its CPU, memory and API writes.

    It measures a node with eight whole GPUs, then one with eight GPUs in 56 MIG slices. Readings every 5 s, a scrape
    every 15 s.

    Parameters
    ----------
    seconds
        Seconds of measurement per node.
    warm_up
        Seconds before the measurement.
    standalone
        Run without a cluster; API writes are not measured.
    """
    options = bench.Options(seconds=seconds, warm_up=warm_up, standalone=standalone)
    measured = to_end(lambda: bench.run(options, progress.for_stream()))
    if measured is None:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0
