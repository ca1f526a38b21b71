"""`kgwe bench`: reproducible benchmarks with one JSON format.

One module per benchmark. Modules import NumPy and the measured code only when the benchmark runs, so the others start
fast.
"""

from __future__ import annotations

from cyclopts import App

from kgwe.cli.bench import (
    admission,
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
    store,
    waste,
)
from kgwe.cli.bench.cost import budgets, cost, pricesplit, savings
from kgwe.cli.bench.forecast import demand, eta, predictor
from kgwe.cli.bench.optimizer import outage, recommendations
from kgwe.cli.bench.scaling import autoscaler, scaledown, spot
from kgwe.cli.bench.workloads import classify, hints, interference, rightsize

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
    admission,
    agent,
    autoscaler,
    budgets,
    classify,
    client,
    cluster,
    cost,
    demand,
    engine,
    eta,
    extender,
    fragmented,
    gang,
    growth,
    hints,
    informer,
    interference,
    mig,
    outage,
    packing,
    plans,
    predictor,
    pricesplit,
    queue,
    recommendations,
    recovery,
    rightsize,
    savings,
    scaledown,
    shares,
    spot,
    waste,
    store,
):
    app.command(each.app)
