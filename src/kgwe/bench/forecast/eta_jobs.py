"""Jobs of the benchmark of estimated starts: a recorded list, with the run times that users would have declared.

The list has no declared run times, so they are made up the way users of batch systems are known to declare them. The
real run time divided by the declared one is spread evenly between 0 and 1 (Mu'alem and Feitelson, 2001), and users
choose from a few round values (Tsafrir, Etsion and Feitelson, 2005). One in twenty declares too little.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.bench.forecast.data import parse_number, read_rows
from kgwe.placement.fleet.node import GPU_MILLI, Gpus, Request
from kgwe.sim.traces.workload import Job, Workload

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")
GPUS_PER_NODE: Final = 8
_MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86400.0
#: Values that users choose from.
ROUND_S: Final = np.array(
    [
        *(_MINUTE_S * count for count in (5, 10, 15, 30)),
        *(_HOUR_S * count for count in (1, 2, 3, 4, 6, 8, 12, 18)),
        *(_DAY_S * count for count in (1, 2, 3, 5, 7, 10, 14, 21, 30, 60)),
    ]
)
# The smallest part of the declared time that a job uses.
_LEAST_USED: Final = 0.02
# Share of jobs that arrive long before the others.
_EARLY: Final = 0.01
_CPU_MILLI_PER_GPU: Final = 4000
_MEMORY_PER_GPU: Final = 8 << 30


def read_jobs(path: Path, *, every: int, first: int) -> tuple[Workload, int]:
    """Return every n-th usable job from number `first` on, and how many rows of the file were not usable."""
    rows = read_rows(path, COLUMNS)
    made = [_make_job(row, number) for number, row in enumerate(rows)]
    usable = sorted((job for job in made if job is not None), key=lambda job: (job.arrival_s, job.name))
    kept = usable[first % every :: every]
    if not kept:
        raise errors.Permanent(f"{path} has no usable jobs; needed are {', '.join(COLUMNS)}")
    return Workload.from_jobs(path.name, kept), len(rows) - len(usable)


def _make_job(row: dict[str, str], number: int) -> Job | None:
    """Return the job of a row; None if its time, duration or GPUs are missing or make no sense."""
    arrival_s, duration_s = _parse_time(row["timestamp"]), parse_number(row["duration"])
    gpus = parse_number(row["num_gpus"])
    if not (0 < duration_s < math.inf and 1 <= gpus < math.inf and arrival_s is not None):
        return None
    pods = math.ceil(gpus / GPUS_PER_NODE)
    each = math.ceil(gpus / pods)
    request = Request(Gpus(count=each), _CPU_MILLI_PER_GPU * each, _MEMORY_PER_GPU * each)
    return Job(f"{number:06d}", arrival_s, duration_s, request, pods, user=row["cluster"] or "unknown")


def _parse_time(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text or "").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def declare_run_times(real_s: Floats, seed: int, late: float = 0.05) -> Floats:
    """Return the run times that users would declare; the share `late` of them is too short."""
    random = np.random.default_rng(seed)
    used = random.uniform(_LEAST_USED, 1.0, len(real_s))
    is_late = random.uniform(size=len(real_s)) < late
    above = np.searchsorted(ROUND_S, real_s / used)
    below = np.searchsorted(ROUND_S, real_s) - 1
    chosen = np.where(is_late, below, above)
    return np.asarray(ROUND_S[np.clip(chosen, 0, len(ROUND_S) - 1)])


def size_fleet(workload: Workload, load: float) -> int:
    """Return the nodes on which the jobs would use the part `load` of all GPUs, if each started when it is submitted.

    The few jobs long before the others do not count as arrivals, but they count as work.
    """
    start_s = np.array([job.arrival_s for job in workload.jobs])
    end_s = start_s + [job.duration_s for job in workload.jobs]
    gpus = np.array([job.milli / GPU_MILLI for job in workload.jobs])
    first_s, last_s = np.quantile(start_s, _EARLY), start_s[-1]
    inside = np.clip(np.minimum(end_s, last_s) - np.maximum(start_s, first_s), 0.0, None)
    mean = float((gpus * inside).sum()) / max(float(last_s - first_s), 1.0)
    # The largest job must fit.
    largest = max(job.pods for job in workload.jobs)
    return max(math.ceil(mean / load / GPUS_PER_NODE), largest, 1)
