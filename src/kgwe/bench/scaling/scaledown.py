"""`kgwe bench scaledown`: nodes kept powered for recorded demand, beside reactive rules.

Demand is the number of nodes in use, minute by minute. Every policy sees only the past. It reads the whole file in
order; the last part is measured. A change asked for at the end of a minute holds from the next one; the result with
slower launches stands beside it. A shortage is ten minutes in which demand was above the powered nodes on average.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.forecast.data import find_file, parse_number, read_rows
from kgwe.bench.scaling import charts
from kgwe.scaling.powered import PoweredNodes
from kgwe.sim.report import chart

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from kgwe.local.host.progress import Progress

    Floats = NDArray[np.float64]

_FILE: Final = "demand/philly_active_nodes_1min.csv.gz"
_LATER: Final = 0.3
_STEP_MIN: Final = 10
_DAY_MIN: Final = 1440
_LEAST: Final = 3 * _DAY_MIN
_LAUNCHES_MIN: Final = (3, 5, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    data: Path | None = None
    later: float = _LATER


class Policy(Protocol):
    def decide(self, demand: float) -> int: ...


@dataclass(slots=True)
class Reactive:
    """Keeps a buffer idle. It acts when a quarter of the buffer is left, or twice the buffer is idle."""

    buffer: int
    every_min: int
    powered: int = 0
    _minutes: int = 0
    _sum: float = 0.0

    def decide(self, demand: float) -> int:
        self._minutes += 1
        self._sum += demand
        if self._minutes % self.every_min == 0:
            demand, self._sum = self._sum / self.every_min, 0.0
            idle = self.powered - demand
            if not self.buffer / 4 <= idle <= 2 * self.buffer:
                self.powered = int(np.ceil(demand)) + self.buffer
        return self.powered


def run(options: Options, progress: Progress) -> report.Report:
    """Run all policies over the file."""
    if not 0 < options.later <= 1:
        raise errors.Permanent("--later must be above 0 and at most 1")
    machine = report.examine_machine()
    demand, total = read_demand(find_file(options.data, _FILE))
    first = int(len(demand) * (1 - options.later)) // _STEP_MIN * _STEP_MIN
    started = time.process_time()
    progress.note("KGWE")
    powered = follow(demand, PoweredNodes())
    metrics: dict[str, Any] = {**measure(demand, powered, first)}
    metrics["by_launch_minutes"] = {
        str(minutes): measure(demand, delay_launches(powered, minutes), first) for minutes in _LAUNCHES_MIN
    }
    progress.note("reactive rules")
    rules = {
        "reactive_20": Reactive(20, _STEP_MIN),
        "reactive_10": Reactive(10, _STEP_MIN),
        "reactive_20_every_minute": Reactive(20, 1),
    }
    metrics["baselines"] = {
        "no_scaling": measure(demand, total, first),
        **{name: measure(demand, follow(demand, rule), first) for name, rule in rules.items()},
    }
    metrics["cpu_s"] = round(time.process_time() - started, 1)
    metrics["series"] = _thin_out(demand[first:], powered[first:])
    params = {"later": options.later, "minutes": len(demand) - first}
    return report.Report("scaledown", params, metrics, machine)


def read_demand(path: Path) -> tuple[Floats, Floats]:
    """Return nodes in use and all nodes per minute. A minute without a number repeats the one before."""
    rows = read_rows(path, ("active", "total"))
    demand, total = (np.array([parse_number(row[name]) for row in rows]) for name in ("active", "total"))
    usable = np.isfinite(demand) & np.isfinite(total)
    if usable.sum() < _LEAST:
        raise errors.Permanent(f"{path} has fewer than {_LEAST} usable minutes")
    last = np.maximum.accumulate(np.where(usable, np.arange(len(rows)), int(usable.argmax())))
    length = len(rows) // _STEP_MIN * _STEP_MIN
    return demand[last][:length], total[last][:length]


def follow(demand: Floats, policy: Policy) -> Floats:
    """Return the powered nodes of every minute: what the policy chose after the minute before."""
    powered = np.empty(len(demand))
    chosen = policy.decide(float(demand[0]))
    for minute, each in enumerate(demand.tolist()):
        powered[minute] = chosen
        chosen = policy.decide(each)
    return powered


def delay_launches(powered: Floats, minutes: int) -> Floats:
    """Return the nodes that are up when a launch takes so many minutes. Nodes are powered off at once."""
    windows = np.lib.stride_tricks.sliding_window_view(np.r_[np.full(minutes, powered[0]), powered], minutes + 1)
    return np.asarray(windows.min(axis=1))


def measure(demand: Floats, powered: Floats, first: int) -> dict[str, float]:
    """Return the part of powered nodes in use, and shortages and changes per day, of the minutes from `first` on."""
    demand, powered = demand[first:], powered[first:]
    days = len(demand) / _DAY_MIN
    steps = [each.reshape(-1, _STEP_MIN).mean(axis=1) for each in (demand, powered)]
    return {
        "used_share": round(float(np.minimum(demand, powered).sum() / powered.sum()), 4),
        "shortages_per_day": round(float((steps[0] > steps[1]).sum() / days), 3),
        "changes_per_day": round(float((np.diff(powered) != 0).sum() / days), 2),
        "shortage_minutes_per_day": round(float((demand > powered).sum() / days), 1),
    }


def _thin_out(demand: Floats, powered: Floats) -> dict[str, list[float]]:
    """Return one point per hour for the chart: the mean demand and the nodes powered."""
    length = len(demand) // 60 * 60
    return {
        "in_use": [round(each, 1) for each in demand[:length].reshape(-1, 60).mean(axis=1).tolist()],
        "powered": [round(each, 1) for each in powered[:length].reshape(-1, 60).mean(axis=1).tolist()],
    }


def write_chart(measured: report.Report, path: Path) -> None:
    """Draw nodes in use and nodes powered."""
    found = measured.metrics["series"]
    days = [hour / 24 for hour in range(len(found["in_use"]))]
    series = [chart.Series("powered", days, found["powered"]), chart.Series("in use", days, found["in_use"])]
    top = max(found["powered"], default=1.0)
    charts.write_lines(path, series, x_label="days", y_label="nodes", top=top)
