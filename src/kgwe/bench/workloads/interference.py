"""How well the speeds of two jobs on one GPU are predicted, leave-one-model-out.

For each model, the interference model is fitted to the pairs that contain none of its settings, and predicts the pairs
that do. Of the model that is left out only the runs alone are known. `mae` is the error of the speed of the job whose
model was left out, as the published baselines count. `both_jobs_mae` counts its partner too, which was seen in other
pairs and is easier. The baselines are measured on the same pairs. The fitted coefficients are dropped at the end.

A pair is called safe if both predicted speeds exceed the bound by a margin. The margin of each fold comes from its
training pairs alone, predicted in the same way one level deeper.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.workloads import data
from kgwe.forecast import coefficients as shipped
from kgwe.forecast.interference import safety
from kgwe.forecast.interference.fit import Fitted, Observed, fit_model
from kgwe.forecast.interference.model import Signatures, compute_speeds, describe_jobs, estimate_parts

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from kgwe.local.host.progress import Progress

    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]
    Key = tuple[str, str, str, str]

PAIRS: Final = "lucid_colocated_pairs.csv"
SINGLES: Final = "lucid_single_runs.csv"
# The margin must hold for a model that was never seen: more is asked of the training pairs than of the result.
_TRAINING_PRECISION: Final = 0.99
_DECIMALS: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Jobs and pairs. Row i and row i + half of `observed` are the two jobs of pair i."""

    jobs: Signatures
    groups: NDArray[np.intp]
    names: tuple[str, ...]
    observed: Observed

    @property
    def half(self) -> int:
        return len(self.observed.speeds) // 2

    def select_pairs(self, group: int) -> Mask:
        """Return which pairs contain a job of the group."""
        jobs, others = self.observed.jobs[: self.half], self.observed.others[: self.half]
        return np.asarray((self.groups[jobs] == group) | (self.groups[others] == group))

    def keep(self, pairs: Mask) -> Observed:
        rows = np.concatenate([pairs, pairs])
        return Observed(*(each[rows] for each in self.observed))


def run(folder: Path | None, progress: Progress) -> report.Report:
    """Read the pairs and predict each model's without it."""
    machine = report.examine_machine()
    found = data.find_folder("sharing", folder, PAIRS, SINGLES)
    table = read_table(found)
    with progress.step(f"{table.half} pairs of {len(table.names)} models, each left out once") as step:
        folds = []
        for group, name in enumerate(table.names):
            if table.select_pairs(group).any():
                step.update(name)
                folds.append(_predict_fold(table, group))
    params = {"pairs": table.half, "models": len(folds), "safe_speed": safety.SAFE_SPEED}
    return report.Report("interference", params, _summarize(folds), machine)


def read_table(folder: Path) -> Table:
    """Read runs alone and pairs. A pair with a job that was not measured alone is an error."""
    with (folder / SINGLES).open(newline="") as file:
        singles = list(csv.DictReader(file))
    with (folder / PAIRS).open(newline="") as file:
        pairs = list(csv.DictReader(file))
    try:
        return _build_table(singles, pairs)
    except (KeyError, ValueError, TypeError) as problem:
        raise errors.Permanent(f"{folder}: {PAIRS} or {SINGLES} has a bad or missing field: {problem}") from problem


def _build_table(singles: list[dict[str, str]], pairs: list[dict[str, str]]) -> Table:
    index = {_key(row, ""): number for number, row in enumerate(singles)}
    names = tuple(sorted({row["model"] for row in singles}))
    columns = np.array(
        [
            [float(row["gpu_util"]) / 100, float(row["gmem_util"]) / 100, float(row["batchsize"]) / float(row["speed"])]
            for row in singles
        ]
    ).T
    first = np.array([index[_key(row, "1")] for row in pairs], dtype=np.intp)
    second = np.array([index[_key(row, "2")] for row in pairs], dtype=np.intp)
    speeds = np.array([[float(row["speed1"]), float(row["speed2"])] for row in pairs]).T.ravel()
    observed = Observed(np.concatenate([first, second]), np.concatenate([second, first]), speeds)
    groups = np.array([names.index(row["model"]) for row in singles], dtype=np.intp)
    return Table(Signatures(*columns), groups, names, observed)


def _key(row: dict[str, str], number: str) -> Key:
    return (row[f"model{number}"], row[f"dataset{number}"], row[f"batchsize{number}"], row[f"amp{number}"])


@dataclass(frozen=True, slots=True, eq=False)
class _Fold:
    measured: Floats
    predicted: dict[str, Floats]
    """Method -> speed of each job."""
    is_held_out: Mask
    """Whether the job is of the model that was left out."""
    is_called_safe: Mask
    """Of each pair."""


def _predict_fold(table: Table, group: int) -> _Fold:
    test = table.select_pairs(group)
    wanted, train = table.keep(test), table.keep(~test)
    fitted = fit_model(table.jobs, train, table.groups)
    ours = compute_speeds(fitted.parts, wanted.jobs, wanted.others)
    return _Fold(
        wanted.speeds,
        {"kgwe": ours, **_predict_simply(table, train, wanted)},
        table.groups[wanted.jobs] == group,
        _measure_margins(table, fitted, wanted) >= _learn_margin(table, ~test),
    )


def _learn_margin(table: Table, train: Mask) -> float:
    """Return the margin by leaving out each model of the training pairs once more."""
    margins, is_safe = [], []
    for group in range(len(table.names)):
        test = table.select_pairs(group) & train
        rest = train & ~table.select_pairs(group)
        if test.any() and rest.any():
            wanted = table.keep(test)
            margins.append(_measure_margins(table, fit_model(table.jobs, table.keep(rest), table.groups), wanted))
            is_safe.append(_slower(wanted.speeds) >= safety.SAFE_SPEED)
    if not margins:
        return safety.DEFAULT_MARGIN
    return safety.find_margin(np.concatenate(margins), np.concatenate(is_safe), precision=_TRAINING_PRECISION)


def _measure_margins(table: Table, fitted: Fitted, wanted: Observed) -> Floats:
    half = len(wanted.speeds) // 2
    return safety.measure_margins(table.jobs, fitted.parts, fitted.seen, wanted.jobs[:half], wanted.others[:half])


def _slower(speeds: Floats) -> Floats:
    half = len(speeds) // 2
    return np.minimum(speeds[:half], speeds[half:])


def _predict_simply(table: Table, train: Observed, wanted: Observed) -> dict[str, Floats]:
    """Return the baselines: a constant, the sum of activities, gradient boosting, and the shipped coefficients."""
    activity = table.jobs.activity
    parts = estimate_parts(shipped.load().interference, describe_jobs(table.jobs))
    predicted = {
        "constant": np.full(len(wanted.speeds), train.speeds.mean()),
        "sum_of_activity": np.minimum(1.0, 1.0 / (activity[wanted.jobs] + activity[wanted.others])),
        "shipped": compute_speeds(parts, wanted.jobs, wanted.others),
    }
    boosted = _boost(table, train, wanted)
    return predicted if boosted is None else {**predicted, "lightgbm": boosted}


def _boost(table: Table, train: Observed, wanted: Observed) -> Floats | None:
    try:
        import lightgbm  # noqa: PLC0415 -- optional, and slow to import
    except (ImportError, OSError):
        return None
    jobs = table.jobs

    def features(rows: Observed) -> Floats:
        mine, other = rows.jobs, rows.others
        return np.column_stack(
            [jobs.activity[mine], jobs.dram[mine], jobs.activity[other], jobs.dram[other], jobs.step_s[mine]]
        )

    params = {"objective": "l2", "num_leaves": 15, "learning_rate": 0.05, "verbose": -1, "num_threads": 1, "seed": 1}
    model = lightgbm.train(params, lightgbm.Dataset(features(train), train.speeds), 150)
    return np.asarray(model.predict(features(wanted)), dtype=np.float64)


def _summarize(folds: list[_Fold]) -> dict[str, Any]:
    measured = np.concatenate([fold.measured for fold in folds])
    held_out = np.concatenate([fold.is_held_out for fold in folds])
    both: dict[str, float] = {}
    alone: dict[str, float] = {}
    for method in folds[0].predicted:
        error = np.abs(np.concatenate([fold.predicted[method] for fold in folds]) - measured)
        both[method] = round(float(error.mean()), _DECIMALS)
        alone[method] = round(float(error[held_out].mean()), _DECIMALS)
    called = np.concatenate([fold.is_called_safe for fold in folds])
    safe = np.concatenate([_slower(fold.measured) >= safety.SAFE_SPEED for fold in folds])
    right = int((called & safe).sum())
    simple = {name: value for name, value in alone.items() if name not in ("kgwe", "shipped")}
    return {
        "mae": alone["kgwe"],
        "baseline_mae": min(simple.values()),
        "safe_precision": round(right / int(called.sum()), _DECIMALS) if called.any() else None,
        "safe_recall": round(right / int(safe.sum()), _DECIMALS) if safe.any() else None,
        "called_safe": int(called.sum()),
        "both_jobs_mae": both,
        "held_out_job_mae": alone,
    }
