"""`kgwe bench`: reproducible benchmarks, one JSON shape.

One module per benchmark. Those that need NumPy import what they measure when they are called: it would cost every other
benchmark's start.
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
Close other programs first: the machine is part of every number.""",
    help_format="plaintext",
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
