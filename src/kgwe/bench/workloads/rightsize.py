"""How well the GPU memory of serving containers is predicted: the first half of each history sets a limit for the rest.

A container is violated if its use in the second half exceeds the limit once. Slack is the share of the limit that it
does not use, as the mean over the second half. The data names no owner, so containers with similar use in the first
half stand for replicas of one workload. The rule is KGWE's own (`forecast/memory.py`). Beside it are the rules of the
Vertical Pod Autoscaler (90th percentile and 15 %) and of KRR (highest value and 15 %), and each rule as a frontier: the
same limits times a factor.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.scaling import charts
from kgwe.bench.workloads import data
from kgwe.forecast.memory import predict_memory
from kgwe.model.usage.history import UsagePeak
from kgwe.sim.report import chart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from kgwe.local.host.progress import Progress

    Floats = NDArray[np.float64]

MEMORY: Final = "pod_gpu_memory_used_bytes.csv.gz"
_LEAST_SAMPLES: Final = 120
_HOUR_S: Final = 3600
_BYTES_PER_MIB: Final = 1 << 20
_PEER_MARGIN: Final = 1.15
_VPA_QUANTILE: Final = 0.9
# Two containers are replicas if these quantiles of their use differ by less than this share. The band, and that the
# newest quarter of a history counts in full, were chosen on the first half alone: its first quarter for its second.
_QUANTILES: Final = (0.25, 0.5, 0.75, 0.9)
_BAND: Final = 0.1
_HALF_LIVES: Final = 8.0
_VIOLATED: Final = (0, 1, 2, 4, 8, 16, 32)
_DECIMALS: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """Memory use of one container in MiB, in order of time."""

    times_s: Floats
    used_mib: Floats

    def split(self) -> tuple[History, History]:
        middle = len(self.times_s) // 2
        first, second = slice(None, middle), slice(middle, None)
        return History(self.times_s[first], self.used_mib[first]), History(self.times_s[second], self.used_mib[second])


@dataclass(frozen=True, slots=True)
class Outcome:
    violated_share: float
    slack: float


def run(folder: Path | None, progress: Progress) -> report.Report:
    """Set limits from the first halves, and judge them on the second halves."""
    machine = report.examine_machine()
    histories = read_histories(data.find_folder("history", folder, MEMORY) / MEMORY)
    first, second = zip(*(each.split() for each in histories), strict=True)
    with progress.step(f"Limits of {len(histories)} containers"):
        limits = {"kgwe": recommend_limits(first), **compute_peer_limits(first)}
    outcomes = {name: judge(values, second) for name, values in limits.items()}
    metrics: dict[str, object] = {
        "violated_share": outcomes["kgwe"].violated_share,
        "slack": outcomes["kgwe"].slack,
    }
    for name in ("vpa", "krr"):
        metrics[f"{name}_violated_share"] = outcomes[name].violated_share
        metrics[f"{name}_slack"] = outcomes[name].slack
    metrics["slack_at_violated"] = {name: _trace_frontier(values, second) for name, values in limits.items()}
    return report.Report("rightsize", {"containers": len(histories), "file": MEMORY}, metrics, machine)


def write_chart(measured: report.Report, path: Path) -> None:
    """Draw the frontier of each rule: containers above their limit, and what is unused of the limits."""
    containers = measured.params["containers"]
    frontiers: Mapping[str, Mapping[str, float]] = measured.metrics["slack_at_violated"]
    series = [
        chart.Series(
            name, [int(count) / containers for count in found], list(found.values()), look=chart.colour(number)
        )
        for number, (name, found) in enumerate(frontiers.items())
    ]
    charts.write_lines(
        path, series, x_label="share of containers above their limit", y_label="unused share of the limits", top=0.6
    )


def read_histories(path: Path) -> list[History]:
    """Read the histories of containers with enough samples. Rows that are not numbers are skipped."""
    rows: dict[str, list[tuple[float, float]]] = {}
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            try:
                sample = (float(row["timestamp_anon"]), float(row["value"]) / _BYTES_PER_MIB)
            except (KeyError, TypeError, ValueError):
                continue
            if np.isfinite(sample).all():
                rows.setdefault(row["container_ip"], []).append(sample)
    tables = (np.array(sorted(each), dtype=np.float64) for each in rows.values() if len(each) >= _LEAST_SAMPLES)
    found = [History(table[:, 0], table[:, 1]) for table in tables if table[: len(table) // 2, 1].max() > 0]
    if not found:
        raise errors.NotFound(
            f"{path} has no container with {_LEAST_SAMPLES} samples of value,timestamp_anon,container_ip"
        )
    return found


def recommend_limits(histories: Sequence[History]) -> Floats:
    """Return the limit of each container in MiB, from its history and those of its replicas."""
    span_s = max(each.times_s[-1] - each.times_s[0] for each in histories)
    needs = [
        predict_memory(
            _find_peaks([histories[index] for index in replicas]), (), half_life_s=max(span_s, 1.0) / _HALF_LIVES
        )
        for replicas in _find_replicas(histories)
    ]
    # Too little history is unknown: such a container keeps its request, which the data does not have.
    limits = [np.inf if need.recommended_mib is None else need.recommended_mib for need in needs]
    return np.array(limits, dtype=np.float64)


def compute_peer_limits(histories: Sequence[History]) -> dict[str, Floats]:
    """Return the limits by the rules of other systems."""
    return {
        "vpa": np.array([np.quantile(each.used_mib, _VPA_QUANTILE) * _PEER_MARGIN for each in histories]),
        "krr": np.array([each.used_mib.max() * _PEER_MARGIN for each in histories]),
    }


def judge(limits: Floats, histories: Sequence[History]) -> Outcome:
    """Judge limits on the later histories. A container without a limit has no slack and is not violated."""
    highest = np.array([each.used_mib.max() for each in histories])
    mean = np.array([each.used_mib.mean() for each in histories])
    unused = np.where(np.isfinite(limits), 1 - mean / limits, 0.0)
    return Outcome(round(float((highest > limits).mean()), _DECIMALS), round(float(unused.mean()), _DECIMALS))


def _trace_frontier(limits: Floats, histories: Sequence[History]) -> dict[str, float]:
    """Return the slack of the same limits, scaled so that a given number of containers is violated."""
    needed = np.sort(np.array([each.used_mib.max() for each in histories]) / limits)[::-1]
    counts = [count for count in _VIOLATED if count < len(needed)]
    return {str(count): judge(limits * needed[count], histories).slack for count in counts}


def _find_replicas(histories: Sequence[History]) -> list[NDArray[np.intp]]:
    """Return for each container the containers with similar use, itself among them."""
    levels = np.log(np.maximum([np.quantile(each.used_mib, _QUANTILES) for each in histories], 1.0))
    return [np.flatnonzero(np.abs(levels - row).max(axis=1) < _BAND) for row in levels]


def _find_peaks(histories: Sequence[History]) -> list[UsagePeak]:
    """Return the peaks of each hour over all histories. Hours count back from the end of each history."""
    hours = np.concatenate([(each.times_s - each.times_s[-1]) // _HOUR_S for each in histories]).astype(np.int64)
    used = np.concatenate([each.used_mib for each in histories])
    return [
        UsagePeak("", int(hour) * _HOUR_S, int(chosen.sum()), 0, float(used[chosen].max()), None, None, None, None)
        for hour in np.unique(hours)
        for chosen in [hours == hour]
    ]
