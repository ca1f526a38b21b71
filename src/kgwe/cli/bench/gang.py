"""`kgwe bench gang`: measures plans for gangs."""

from __future__ import annotations

from cyclopts import App

from kgwe import terminal
from kgwe.cli.bench.command import INTERRUPTED, Json, complain, show
from kgwe.local.host import progress

app = App(
    name="gang",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench gang
  kgwe bench gang --repeat 20 --json""",
)


@app.default
def run(*, repeat: int = 7, seed: int = 1, json: Json = False) -> int:
    """Place gangs on simulated DGX H100 nodes, and diagnose a gang that cannot fit.

    512 pods of 2 GPUs with a preferred rack, 50 gangs of 8 nodes, a gang of 20 nodes with 10 free, 1,000 pods on
    5,000 nodes, compared with a scheduler that places pods one by one. Takes a few seconds. Exit code 1 if a gang
    that fits in one leaf was not placed in one.

    Parameters
    ----------
    repeat
        Repetitions of each plan. Results are medians.
    seed
        Random seed of the GPUs in use beforehand.
    """
    from kgwe.bench.placement import gang as bench  # noqa: PLC0415 -- NumPy

    try:
        measured = bench.run(bench.Options(repeat=repeat, seed=seed), progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    if json:
        show(measured, as_json=True)
    else:
        certificate = measured.metrics.pop("certificate")
        show(measured, as_json=False)
        terminal.write(f"\ncertificate:\n{certificate}\n")
    if bench.is_correct(measured.metrics):
        return 0
    return complain("a gang was not placed in one leaf although it fits: see one_leaf_share and unplaced.")
