"""`kgwe bench eta`: estimated starts with declared and with predicted run times."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from kgwe import errors
from kgwe.cli.bench.command import INTERRUPTED, Json, refuse, show
from kgwe.local.host import progress

app = App(
    name="eta",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench eta
  kgwe bench eta --every 24 --load 0.7 --json
  kgwe bench eta --data jobs.csv""",
)


@app.default
def run(
    *,
    data: Path | None = None,
    every: int = 12,
    load: float = 0.8,
    nodes: int = 0,
    estimate_every: int = 2,
    late: float = 0.05,
    seed: int = 1,
    json: Json = False,
) -> int:
    """Compare the estimated starts of waiting jobs with the real ones, for each source of run times.

    Recorded jobs are replayed through the queue of the scheduler. Run times are declared by users, predicted from the
    jobs that had ended before, both, or unknown.

    Parameters
    ----------
    data
        Jobs with timestamp, duration, num_gpus and cluster. Default: jobs/philly_jobs.csv.gz in $KGWE_DATA, or in
        shared/data nearby.
    every
        Replay every n-th job.
    load
        Size of the fleet: the part of its GPUs that the jobs would use if none had to wait.
    nodes
        Nodes of the fleet, with 8 GPUs each. Default: as --load says.
    estimate_every
        Estimate the start of every n-th replayed job that waits.
    late
        Share of users who declare less than the job takes.
    seed
        Chooses the jobs and the declared run times.
    """
    from kgwe.bench.forecast import eta as bench  # noqa: PLC0415 -- NumPy

    options = bench.Options(
        data=data, every=every, load=load, nodes=nodes, estimate_every=estimate_every, late=late, seed=seed
    )
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    except errors.NotFound as problem:
        return refuse(problem)
    show(measured, as_json=json)
    return 0
