"""Fit the coefficients of `kgwe.forecast` to public measurements and write them into the package.

    python scripts/fit_interference.py --data ../shared/data --date 2026-11-17

Sources, all free to redistribute: Gavel (MIT) for jobs that share a GPU, MISO (MIT) for MIG slices, AdaptDL
(Apache-2.0) for jobs spread over nodes. Gavel does not record activity: a job's share of the best samples per second
over its batch sizes stands for it, because a saturated GPU gains nothing from a larger batch.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_TARGET = Path(__file__).resolve().parent.parent / "src" / "kgwe" / "forecast" / "coefficients.json"
_SOURCES = [
    "stanford-futuredata/gavel (MIT): jobs alone and co-located, V100",
    "boringlee24/socc22-miso (MIT): iteration times on MIG slices, A100-40",
    "petuum/adaptdl, osdi21-artifact (Apache-2.0): step times by placement",
]
# Older GPUs switch between processes without overlap; sharing on them says little about those in use.
_GPU = "v100"
# Its speed beside any job is 0.06 of that alone: the two were not measured in the same unit.
_EXCLUDED = "Recommendation"
_SATURATED = 0.75
_BATCH = re.compile(r"(.*) \(batch size (\d+)\)")
_SLICES = {"1g.5gb": 1, "2g.10gb": 2, "3g.20gb": 3, "4g.20gb": 4, "7g.40gb": 7}
_WHOLE = 7
# GPUs/nodes -> the spread and the consolidated placement
_SPREADS = {"2/2": ("11", "2"), "4/2": ("22", "4"), "4/4": ("1111", "4")}


def fit_sharing(table: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the coefficients of interference.

    The chance that both jobs want the GPU is the product of their activities, so both exponents are 1. One number is
    fitted: how much two saturated jobs slow each other down. Only for them the stand-in for activity is accurate.
    """
    mine, other, speed = np.array(list(_list_pairs(table))).T
    saturated = (mine >= _SATURATED) & (other >= _SATURATED)
    slowdown = 1.0 / speed - 1.0
    base = float(np.log(np.median((slowdown / (mine * other))[saturated])))
    predicted = 1.0 / (1.0 + np.exp(base) * mine * other)
    sys.stdout.write(
        f"sharing: {len(speed) // 2} pairs, {int(saturated.sum())} speeds of saturated jobs; mean absolute error of all"
        f" {np.abs(predicted - speed).mean():.4f}, of a constant {np.abs(speed - np.median(speed)).mean():.4f}\n"
    )
    return {"offset": [0.0], "sensitivity": [round(base, 4), 1.0, 0.0], "intensity": [1.0, 0.0]}


def _list_pairs(table: dict[str, dict[str, Any]]) -> Iterable[tuple[float, float, float]]:
    """Return (activity, activity of the other, speed): the first jobs of all pairs, then the second ones."""
    alone = {name: row["null"] for name, row in table.items() if ast.literal_eval(name)[1] == 1 and row["null"] > 0}
    rates: dict[str, dict[str, float]] = defaultdict(dict)
    for name, rate in alone.items():
        match = _BATCH.fullmatch(ast.literal_eval(name)[0])
        if match and match[1] != _EXCLUDED:
            rates[match[1]][name] = rate * int(match[2])
    activity = {name: rate / max(family.values()) for family in rates.values() for name, rate in family.items()}
    measured = [
        (name, other, *speeds)
        for name in activity
        for other, speeds in table[name].items()
        if other in activity and name <= other and min(speeds) > 0
    ]
    yield from ((activity[a], activity[b], one / alone[a]) for a, b, one, _ in measured)
    yield from ((activity[b], activity[a], two / alone[b]) for a, b, _, two in measured)


def fit_slices(path: Path) -> dict[str, float]:
    """Return each family's share of time that grows as the slice gets smaller."""
    times: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["mig_slice"] in _SLICES:
                times[row["workload"], row["batch_size"]][_SLICES[row["mig_slice"]]] = float(row["median_step"])
    shares: dict[str, list[float]] = defaultdict(list)
    errors = []
    tried = np.linspace(0.0, 1.0, 201)[:, np.newaxis]
    for (family, _), by_size in times.items():
        if _WHOLE in by_size and len(by_size) > 1:
            sizes = np.array([size for size in by_size if size != _WHOLE])
            speeds = np.array([by_size[_WHOLE] / by_size[size] for size in sizes])
            error = np.abs(1.0 / (1.0 - tried + tried * _WHOLE / sizes) - speeds).mean(axis=1)
            shares[family].append(float(tried[error.argmin(), 0]))
            errors.append(error.min())
    sys.stdout.write(f"slices: {len(errors)} workloads, mean absolute error {np.mean(errors):.4f}\n")
    return {family: round(float(np.median(found)), 3) for family, found in sorted(shares.items())}


def fit_communication(folder: Path) -> dict[str, dict[str, float]]:
    """Return each family's step time spread over nodes relative to one node, the median over batch sizes."""
    return {path.stem: _compare_placements(path) for path in sorted(folder.glob("*.csv"))}


def _compare_placements(path: Path) -> dict[str, float]:
    times: dict[tuple[str, str], float] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            times[row["placement"], row["local_bsz"]] = float(row["step_time"])
    found: dict[str, float] = {}
    for name, (spread, together) in _SPREADS.items():
        ratios: NDArray[np.float64] = np.array(
            [time / times[together, size] for (place, size), time in times.items() if place == spread]
        )
        found[name] = round(max(float(np.median(ratios)), 1.0), 3)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fit the coefficients of forecasts to public measurements.")
    parser.add_argument("--data", type=Path, required=True, help="folder with sharing/, mig/, placement-sensitivity/")
    parser.add_argument("--date", required=True, help="date to write into the file")
    parser.add_argument("--output", type=Path, default=_TARGET)
    given = parser.parse_args(arguments)
    table = json.loads((given.data / "sharing" / "gavel_colocation_throughputs.json").read_text())[_GPU]
    found = {
        "date": given.date,
        "sources": _SOURCES,
        "interference": fit_sharing(table),
        "communication": fit_communication(given.data / "placement-sensitivity"),
        "slices": fit_slices(given.data / "mig" / "miso_mig_iteration_times.csv"),
    }
    given.output.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
