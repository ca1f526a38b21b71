"""`kgwe bench predictor`: run-time forecasts on recorded requests, beside medians per key.

The earlier part trains a model. The later part is replayed in the order of time: each request is predicted when it is
submitted, from requests that had ended by then. The model is not trained again.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.forecast.data import find_file
from kgwe.bench.forecast.requests import SCHEMA, Request, read_requests
from kgwe.forecast.runtime.predictor import Predictor
from kgwe.forecast.runtime.query import QUANTILES
from kgwe.forecast.runtime.replays import replay_queries
from kgwe.forecast.runtime.training import Untrained, train_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kgwe.forecast.runtime.artifact import RuntimeModel
    from kgwe.forecast.runtime.query import Prediction
    from kgwe.local.host.progress import Progress

_LATER = 0.25
_FILE = "history/genai_requests.csv"
_LEAST = 20
_WARM_UP = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    train: Path | None = None
    test: Path | None = None
    seed: int = 1


def run(options: Options, progress: Progress) -> report.Report:
    """Train on the earlier part and predict the later one."""
    machine = report.examine_machine()
    requests, cut, skipped = _load(options)
    progress.note(f"training on {cut} requests")
    started = time.process_time()
    model = _train(requests[:cut], options.seed)
    train_cpu_s = time.process_time() - started
    progress.note(f"predicting {len(requests) - cut} requests")
    replay = replay_requests(requests, cut, model if not isinstance(model, Untrained) else None)
    truth = np.array([request.lasted_s for request in requests[cut:]])
    medians = measure_medians(requests, cut)
    metrics = _measure(replay, truth, medians)
    metrics["train_cpu_s"] = round(train_cpu_s, 2)
    params = {
        "train_requests": cut,
        "test_requests": len(requests) - cut,
        "skipped_rows": skipped,
        "seed": options.seed,
        "model": model.reason if isinstance(model, Untrained) else f"{model.header.metrics['rounds']:.0f} trees",
    }
    return report.Report("predictor", params, metrics, machine)


def _load(options: Options) -> tuple[list[Request], int, int]:
    paths = [find_file(options.train, _FILE), *([find_file(options.test, _FILE)] if options.test else [])]
    requests, numbers, skipped = read_requests(paths)
    if len(requests) < _LEAST:
        raise errors.Permanent(f"{paths[0]} has only {len(requests)} usable requests; at least {_LEAST} are needed")
    if options.test is None:
        return requests, int(len(requests) * (1 - _LATER)), skipped
    if numbers != sorted(numbers) or numbers[-1] == 0 or numbers[0] == 1:
        raise errors.Permanent("the requests of --test must all be later than those of --train")
    return requests, numbers.index(1), skipped


def _train(requests: Sequence[Request], seed: int) -> RuntimeModel | Untrained:
    """Train with what is known when the last request of the training part is submitted."""
    now_s = requests[-1].query.submitted_s
    ended = [request.query.submitted_s + request.lasted_s <= now_s for request in requests]
    lasted = [
        request.lasted_s if done else now_s - request.query.submitted_s
        for request, done in zip(requests, ended, strict=True)
    ]
    data = replay_queries(SCHEMA, [request.query for request in requests], lasted, ended)
    return train_model(data, now_s=now_s, seed=seed)


@dataclass(frozen=True, slots=True)
class Replay:
    predictions: list[Prediction]
    wall_s: list[float]
    cpu_s: list[float]
    history: list[float]


def replay_requests(requests: Sequence[Request], cut: int, model: RuntimeModel | None) -> Replay:
    """Feed all requests in the order of time, and predict those from `cut` on."""
    predictor = Predictor(SCHEMA)
    predictions: list[Prediction] = []
    wall, cpu, history = [], [], []
    for index, request in enumerate(requests):
        query = request.query
        predictor.advance(query.submitted_s)
        if index == cut:
            predictor.use_model(model)
            for _ in range(_WARM_UP):
                predictor.predict(query)
            gc.collect()
            gc.freeze()
        if index >= cut:
            began, began_cpu = time.perf_counter(), time.thread_time()
            predictions.append(predictor.predict(query))
            cpu.append(time.thread_time() - began_cpu)
            wall.append(time.perf_counter() - began)
            history.append(float(np.expm1(predictor.stream.estimate(query))))
        predictor.submit(str(index), query)
        predictor.stream.schedule_end(str(index), request.lasted_s, query.submitted_s + request.lasted_s)
    gc.unfreeze()
    return Replay(predictions, wall, cpu, history)


def measure_medians(requests: Sequence[Request], cut: int) -> dict[str, float]:
    """Return the mean absolute error of the median of each key in the training part; of all where the key is new."""
    truth = np.array([request.lasted_s for request in requests])
    result = {"all": _mae(np.full(len(truth) - cut, np.median(truth[:cut])), truth[cut:])}
    for level, name in enumerate(SCHEMA.keys):
        by_key: dict[str, list[float]] = defaultdict(list)
        for request in requests[:cut]:
            by_key[request.query.keys[level]].append(request.lasted_s)
        medians = {key: float(np.median(values)) for key, values in by_key.items()}
        default = float(np.median(truth[:cut]))
        predicted = [medians.get(request.query.keys[level], default) for request in requests[cut:]]
        result[name] = _mae(np.array(predicted), truth[cut:])
    return result


def _measure(replay: Replay, truth: np.ndarray[Any, Any], medians: dict[str, float]) -> dict[str, Any]:
    known = np.array([prediction.is_known for prediction in replay.predictions])
    # A request about which nothing is known counts with the estimate from all requests.
    predicted = np.array(
        [
            prediction.quantiles[0.5] if prediction.is_known else estimate
            for prediction, estimate in zip(replay.predictions, replay.history, strict=True)
        ]
    )
    lower = np.array([prediction.lower_s for prediction in replay.predictions])[known]
    upper = np.array([prediction.upper_s for prediction in replay.predictions])[known]
    inside = (truth[known] >= lower) & (truth[known] <= upper)
    answered = [prediction.quantiles for prediction in replay.predictions if prediction.is_known]
    outer = np.array([(quantiles[QUANTILES[0]], quantiles[QUANTILES[-1]]) for quantiles in answered]).reshape(-1, 2)
    between = (truth[known] >= outer[:, 0]) & (truth[known] <= outer[:, 1])
    mae = _mae(predicted, truth)
    thirds = np.array_split(np.argsort(predicted[known], kind="stable"), 3)
    return {
        "mae_s": mae,
        "baseline_mae_s": min(medians.values()),
        "history_mae_s": _mae(np.array(replay.history), truth),
        "coverage_80": round(float(inside.mean()), 4),
        "mean_width_s": round(float((upper - lower).mean()), 3),
        "width_over_mae": round(float((upper - lower).mean()) / mae, 3),
        "quantiles_coverage_80": round(float(between.mean()), 4),
        "quantiles_mean_width_s": round(float((outer[:, 1] - outer[:, 0]).mean()), 3),
        "predict_p50_ms": round(float(np.quantile(replay.wall_s, 0.5)) * 1e3, 3),
        "predict_p99_ms": round(float(np.quantile(replay.wall_s, 0.99)) * 1e3, 3),
        "predict_cpu_p99_ms": round(float(np.quantile(replay.cpu_s, 0.99)) * 1e3, 3),
        "unknown_share": round(float(1 - known.mean()), 4),
        "median_mae_s": medians,
        "coverage_by_third": {
            name: round(float(inside[rows].mean()), 4)
            for name, rows in zip(("short", "middle", "long"), thirds, strict=True)
        },
    }


def _mae(predicted: np.ndarray[Any, Any], truth: np.ndarray[Any, Any]) -> float:
    return round(float(np.abs(predicted - truth).mean()), 4)
