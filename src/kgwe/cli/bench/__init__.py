"""`kgwe bench`: reproducible benchmarks with one JSON format.

One module per benchmark. Modules import NumPy and the measured code only when the benchmark runs, so the others start
fast.
"""

from __future__ import annotations

from cyclopts import App

from kgwe.cli.bench import (
    agent,
    client,
    cluster,
    engine,
    extender,
    fragmented,
    gang,
    growth,
    informer,
    mig,
    packing,
    plans,
    queue,
    recovery,
    shares,
)

app = App(
    name="bench",
    help="""Measure KGWE on this machine.

Progress goes to stderr. With --json the last line of stdout is one JSON object
{"name", "params", "metrics", "machine"}; otherwise a table is printed.
Close other programs first: other load changes the results.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench engine                 decisions for single pods, in seconds
  kgwe bench gang --json            plans for gangs, as one line of JSON
  kgwe bench cluster --help         the options of one benchmark""",
)

for each in (
    agent,
    client,
    cluster,
    engine,
    extender,
    fragmented,
    gang,
    growth,
    informer,
    mig,
    packing,
    plans,
    queue,
    recovery,
    shares,
):
    app.command(each.app)
