"""`kgwe bench plans`: measures plans of preemption, recovery and defragmentation."""

from __future__ import annotations

from cyclopts import App

from kgwe.cli.bench.command import INTERRUPTED, Json, show

app = App(
    name="plans",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench plans
  kgwe bench plans --nodes 1000 --repeat 10 --json""",
)


@app.default
def run(*, nodes: int = 500, repeat: int = 5, seed: int = 1, json: Json = False) -> int:
    """Time plans of preemption, recovery and defragmentation on simulated nodes. Exit code 1 if one is not found.

    Parameters
    ----------
    nodes
        Simulated nodes, with a pod on each GPU.
    repeat
        Repetitions of each plan. Results are medians.
    seed
        Random seed of the running pods.
    """
    from kgwe.bench.placement import plans as bench  # noqa: PLC0415 -- NumPy

    try:
        measured = bench.run(bench.Options(nodes=nodes, repeat=repeat, seed=seed))
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0 if bench.is_correct(measured.metrics) else 1
