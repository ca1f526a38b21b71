"""`kgwe bench spot`: jobs with a deadline and services on recorded spot availability, and the risk of gangs.

A job of 48 hours starts every 6 hours of every trace. Four deadlines and two restart times make eight settings. The
same policy runs in all of them, beside three published rules and a bound that knows the future and restarts for free.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.scaling import charts, spot_serving
from kgwe.bench.scaling.data import SpotTrace, find_folder, read_spot_traces
from kgwe.bench.scaling.spot_jobs import BASELINES, Pool, bound_costs, make_pool, plan_pool, replay_jobs
from kgwe.scaling.spot.deadline import Terms
from kgwe.scaling.spot.gang_risk import GangRisk
from kgwe.scaling.spot.run_rates import RunHistory, pool_rates
from kgwe.sim.report import chart

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from kgwe.bench.scaling.spot_jobs import Rule
    from kgwe.local.host.progress import Progress

#: Pools that step widths, half-lives and the typical rates were chosen on. They are left out of the reported results.
TUNED: Final = (
    "availability_1-node_aws-02-15-2023_us-east-1d_v100_1",
    "availability_1-node_aws-02-15-2023_us-west-2a_v100_1",
    "availability_1-node_aws-10-26-2022_us-west-2a_k80_1",
    "availability_1-node_aws-10-26-2022_us-west-2a_v100_1",
    "availability_1-node_aws-10-26-2022_us-west-2b_k80_1",
    "availability_1-node_aws-10-26-2022_us-west-2b_v100_8",
)
_DEADLINES_H: Final = (52.0, 60.0, 70.0, 92.0)
_RESTARTS_MIN: Final = (3.0, 12.0)
_ON_DEMAND: Final = 3.06
_SPOT: Final = 0.97
# Gangs are predicted after this part of a trace, once an hour.
_WARM_UP: Final = 0.3
_AHEAD_H: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    data: Path | None = None
    work_hours: float = 48.0
    start_every_hours: float = 6.0
    replan_hours: float = 48.0
    all_zones: bool = False


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Starts of all deadlines in one pool."""

    starts: NDArray[np.int64]
    deadlines_h: NDArray[np.float64]


def run(options: Options, progress: Progress) -> report.Report:
    """Replay all jobs, then predict all gangs."""
    if min(options.work_hours, options.start_every_hours, options.replan_hours) <= 0:
        raise errors.Permanent("--work-hours, --start-every-hours and --replan-hours must be positive")
    machine = report.examine_machine()
    folder = find_folder(options.data, "spot")
    traces = read_spot_traces(folder, "availability")
    reported = [each for each in traces if options.all_zones or each.name not in TUNED] or traces
    if not reported:
        raise errors.NotFound(f"{folder} has no availability_*.json")
    started = time.process_time()
    metrics = measure_jobs(reported, options, progress)
    progress.note("predicting breaks of gangs")
    metrics["gangs"] = measure_gangs(read_spot_traces(folder, "preemption"))
    metrics["gang_risk_error"] = max((each["error"] for each in metrics["gangs"].values()), default=None)
    progress.note("replaying inference services")
    metrics["serving"] = spot_serving.measure_serving(traces, spot_serving.Prices(_ON_DEMAND, _SPOT))
    metrics["cpu_s"] = round(time.process_time() - started, 1)
    params = {
        "zones": len(reported),
        "work_hours": options.work_hours,
        "start_every_hours": options.start_every_hours,
        "replan_hours": options.replan_hours,
        "on_demand": _ON_DEMAND,
        "spot": _SPOT,
    }
    return report.Report("spot", params, metrics, machine)


def measure_jobs(traces: Sequence[SpotTrace], options: Options, progress: Progress) -> dict[str, Any]:
    """Return the mean cost of all jobs per setting and policy, as a share of on-demand alone."""
    costs: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    missed: dict[str, int] = {}
    for number, trace in enumerate(traces, 1):
        progress.note(f"{trace.name} ({number} of {len(traces)})")
        pool, lanes = make_pool(trace), _list_lanes(trace, options)
        for restart in _RESTARTS_MIN:
            for policy, (found, late) in _replay_pool(pool, lanes, restart / 60, options).items():
                missed[policy] = missed.get(policy, 0) + int(late.sum())
                for deadline in _DEADLINES_H:
                    share = found[lanes.deadlines_h == deadline] / (options.work_hours * _ON_DEMAND)
                    costs.setdefault((name_setting(deadline, restart), policy), []).append(share)
    if not any(len(each) for found in costs.values() for each in found):
        raise errors.Permanent(f"no trace is as long as the longest deadline, {max(_DEADLINES_H):g} h")
    ratio: dict[str, dict[str, float]] = {}
    for (setting, policy), shares in costs.items():
        ratio.setdefault(setting, {})[policy] = round(float(np.concatenate(shares).mean()), 4)
    closed = {setting: close_gap(each) for setting, each in ratio.items()}
    return {
        "cost_ratio": ratio,
        "deadline_misses": missed["kgwe"],
        "baseline_deadline_misses": {name: missed[name] for name in BASELINES},
        "gap_closed": round(float(np.mean(list(closed.values()))), 4),
        "gap_closed_by_setting": closed,
        "starts": sum(len(each) for each in costs[name_setting(_DEADLINES_H[0], _RESTARTS_MIN[0]), "kgwe"]),
    }


def name_setting(deadline_h: float, restart_min: float) -> str:
    return f"{deadline_h:g}h_{restart_min:g}min"


def close_gap(ratio: dict[str, float]) -> float:
    """Return the part of the way from the best baseline to the bound; negative where the policy is worse."""
    best = min(ratio[name] for name in BASELINES)
    gap = best - ratio["bound"]
    return round((best - ratio["kgwe"]) / gap, 4) if gap > 0 else 0.0


def _list_lanes(trace: SpotTrace, options: Options) -> _Lanes:
    starts, deadlines = [], []
    for deadline in _DEADLINES_H:
        # All deadlines begin at the same times, so that settings compare.
        hours = np.arange(0.0, trace.hours - max(_DEADLINES_H), options.start_every_hours)
        starts.append(np.rint(hours / trace.step_h).astype(np.int64))
        deadlines.append(np.full(len(hours), deadline))
    return _Lanes(np.concatenate(starts), np.concatenate(deadlines))


def _replay_pool(
    pool: Pool, lanes: _Lanes, restart_h: float, options: Options
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    terms = Terms(on_demand=_ON_DEMAND, spot=_SPOT, restart_h=restart_h)
    work = options.work_hours
    rules: dict[str, Rule] = {
        "kgwe": plan_pool(pool, terms, time_h=max(_DEADLINES_H), work_h=work, replan_h=options.replan_hours),
        **BASELINES,
    }
    found = {
        name: replay_jobs(pool, lanes.starts, lanes.deadlines_h, work_h=work, terms=terms, rule=rule)
        for name, rule in rules.items()
    }
    bound = bound_costs(pool, lanes.starts, lanes.deadlines_h, work, terms)
    return {**found, "bound": (bound, np.zeros(len(bound), dtype=bool))}


def measure_gangs(traces: Sequence[SpotTrace]) -> dict[str, dict[str, float]]:
    """Return predicted and observed breaks per pool: each prediction from the other pools and the past of its own."""
    gangs = [each for each in traces if each.nodes.max() > 1]
    histories = {each.name: _observe_all(each) for each in gangs}
    result = {}
    for trace in gangs:
        others = [histories[each.name] for each in gangs if each.name != trace.name]
        result[trace.name] = _predict_gang(trace, others)
    return {name: found for name, found in result.items() if found["observed"] > 0}


def _observe_all(trace: SpotTrace) -> RunHistory:
    history, size = RunHistory(half_life_h=1e9), int(trace.nodes.max())
    for nodes in trace.nodes:
        history.observe(is_available=bool(nodes >= size), hours=trace.step_h)
    return history


def _predict_gang(trace: SpotTrace, others: list[RunHistory]) -> dict[str, float]:
    size, every = int(trace.nodes.max()), max(round(_AHEAD_H / trace.step_h), 1)
    risk = GangRisk(size)
    if others:
        risk = replace(risk, prior=pool_rates(others))
    lost = node_hours = predicted = product = 0.0
    observed = asked = 0
    for step, nodes in enumerate(trace.nodes[:-every]):
        risk.observe(int(nodes), trace.step_h)
        if step > _WARM_UP * len(trace.nodes) and step % every == 0 and nodes >= size:
            asked += 1
            predicted += risk.estimate_break(every * trace.step_h)
            alone = 1.0 - math.exp(-lost / max(node_hours, 1.0) * every * trace.step_h)
            product += 1.0 - (1.0 - alone) ** size
            observed += int(trace.nodes[step : step + every + 1].min() < size)
        lost += max(int(nodes - trace.nodes[step + 1]), 0)
        node_hours += int(nodes) * trace.step_h
    return {
        "nodes": size,
        "asked": asked,
        "predicted": round(predicted, 1),
        "observed": observed,
        "error": round(abs(predicted / observed - 1.0), 3) if observed else 0.0,
        "product_rule_error": round(abs(product / observed - 1.0), 3) if observed else 0.0,
    }


def write_chart(measured: report.Report, path: Path) -> None:
    """Draw the cost over the slack for the longer restart."""
    ratio, restart = measured.metrics["cost_ratio"], max(_RESTARTS_MIN)
    names = ("kgwe", *BASELINES, "bound")
    slack = [deadline - measured.params["work_hours"] for deadline in _DEADLINES_H]
    series = [
        chart.Series(
            name.replace("_", " "),
            slack,
            [ratio[name_setting(deadline, restart)][name] for deadline in _DEADLINES_H],
        )
        for name in names
    ]
    label = f"cost, share of on-demand ({restart:g} min restart)"
    charts.write_lines(path, series, x_label="deadline less work, hours", y_label=label, top=1.0)


def write_serving_chart(measured: report.Report, path: Path) -> None:
    """Draw availability and cost of a service over its extra replicas."""
    for found in measured.metrics["serving"].values():
        extras = list(map(float, spot_serving.EXTRAS))
        series = [
            chart.Series("availability", extras, spot_serving.list_shares(found, "availability")),
            chart.Series("cost, share of on-demand", extras, spot_serving.list_shares(found, "cost_ratio")),
        ]
        label = f"{found['wanted']} replicas over {found['zones']} zones"
        charts.write_lines(path, series, x_label="extra replicas", y_label=label, top=1.0)
        return
