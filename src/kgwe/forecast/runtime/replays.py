"""History of workloads as queries: the keys of a fingerprint, replays of stored runs, and training sets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.forecast.runtime.predictor import Predictor
from kgwe.forecast.runtime.query import Query
from kgwe.forecast.runtime.schema import Schema
from kgwe.forecast.runtime.stream import RunStream
from kgwe.forecast.runtime.training import TrainingSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.forecast.runtime.artifact import RuntimeModel
    from kgwe.model.usage.fingerprint import Fingerprint
    from kgwe.model.usage.history import Run

#: Of workloads on a cluster, fine to coarse.
WORKLOADS: Final = Schema(("version", "workload", "image", "owner", "namespace"), ("GPUs", "pods"))
_LANE: Final = 4
_SHARED: Final = 2


def make_query(
    fingerprint: Fingerprint, *, now_s: float, user: str, gpus: float, pods: int, version: str = ""
) -> Query:
    """Return the query of a workload that is submitted now."""
    key, space = fingerprint.key, fingerprint.namespace
    keys = (
        f"v|{key}|{version or fingerprint.version}",
        f"f|{key}",
        f"i|{space}|{fingerprint.image}|{gpus:g}",
        f"o|{space}|{fingerprint.owner}",
        f"n|{space}|{gpus:g}",
    )
    return Query(now_s, keys, user, _LANE, (gpus, float(pods)), _SHARED)


def make_run_query(run: Run, fingerprints: Mapping[str, Fingerprint]) -> Query:
    """Return the query of a stored run. Without its fingerprint only the exact keys are known."""
    known = fingerprints.get(run.fingerprint)
    if known is not None:
        return make_query(known, now_s=run.started_s, user=run.user, gpus=run.gpus, pods=run.pods, version=run.version)
    keys = (f"v|{run.fingerprint}|{run.version}", f"f|{run.fingerprint}", "i|", "o|", "n|")
    return Query(run.started_s, keys, run.user, _LANE, (run.gpus, float(run.pods)), _SHARED)


def build_predictor(
    runs: Iterable[Run], fingerprints: Mapping[str, Fingerprint], *, now_s: float, model: RuntimeModel | None = None
) -> Predictor:
    """Return a predictor that knows the given runs. Runs that have not ended stay running in it."""
    predictor = Predictor(WORKLOADS, model)
    for run in order_runs(runs):
        predictor.advance(run.started_s)
        predictor.submit(run.uid, make_run_query(run, fingerprints))
        if run.ended_s is not None:
            predictor.stream.schedule_end(run.uid, run.lasted_s, run.ended_s)
    predictor.advance(now_s)
    return predictor


def make_training_set(runs: Sequence[Run], fingerprints: Mapping[str, Fingerprint], *, now_s: float) -> TrainingSet:
    """Return the features of stored runs, each with what was known when it started."""
    ordered = order_runs(runs)
    queries = [make_run_query(run, fingerprints) for run in ordered]
    lasted = [run.lasted_s if run.ended_s is not None else max(now_s - run.started_s, run.lasted_s) for run in ordered]
    ended = [run.ended_s is not None and run.ended_s <= now_s for run in ordered]
    return replay_queries(WORKLOADS, queries, lasted, ended)


def replay_queries(
    schema: Schema, queries: Sequence[Query], lasted_s: Sequence[float], has_ended: Sequence[bool]
) -> TrainingSet:
    """Return the features of queries in the order of time, each computed before its own outcome is known."""
    stream = RunStream(schema)
    rows = np.empty((len(queries), len(schema.names)))
    for index, query in enumerate(queries):
        stream.advance(query.submitted_s)
        rows[index] = stream.describe(query)
        stream.submit(str(index), query)
        if has_ended[index]:
            stream.schedule_end(str(index), lasted_s[index], query.submitted_s + lasted_s[index])
    return TrainingSet(
        schema,
        rows,
        np.asarray(lasted_s, dtype=np.float64),
        np.asarray(has_ended, dtype=np.bool_),
        np.array([query.submitted_s for query in queries]),
    )


def order_runs(runs: Iterable[Run]) -> list[Run]:
    """Return the runs with usable times, in the order of their start."""
    usable = (
        run
        for run in runs
        if math.isfinite(run.started_s)
        and (run.ended_s is None or (math.isfinite(run.ended_s) and run.ended_s >= run.started_s))
    )
    return sorted(usable, key=lambda run: (run.started_s, run.uid))
