"""Run times: the predictor fed with the runs of the cluster, and its models.

History is replayed from the store when a term begins. From then on the predictor follows the runs that are recorded. A
new model is trained from the stored runs in a process of its own, and kept with its version, so that it can be rolled
back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from kgwe.forecast.runtime import replays
from kgwe.forecast.runtime.query import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kgwe.forecast.runtime.artifact import RuntimeModel
    from kgwe.forecast.runtime.query import Prediction
    from kgwe.model.usage.description import WorkloadDescription
    from kgwe.model.usage.fingerprint import Fingerprint
    from kgwe.model.usage.history import Run
    from kgwe.proto import optimizer_pb2 as pb

log = structlog.get_logger(__name__)

#: History that predictions are made from.
HISTORY_S: Final = 90 * 86400.0
# A run that was not seen for so long has lost its pods before it ended.
_LOST_S: Final = 600.0
# Errors and coverage are those of about so many last runs.
_MEMORY: Final = 200


class RunTimeModel:
    """Predicts run times of workloads. Used by the event loop only."""

    def __init__(self) -> None:
        self._predictor = replays.build_predictor((), {}, now_s=0.0)
        self._fingerprints: dict[str, Fingerprint] = {}
        self._open: dict[str, tuple[float, Prediction]] = {}  # run -> when it was last seen, and its prediction
        self._ended: dict[str, int] = {}  # fingerprint -> runs that ended
        self._finished: set[str] = set()
        self._scored = 0
        self._error_s = 0.0
        self._covered = 0.0
        self.model_version = ""
        self.trained_s: float | None = None

    @property
    def fingerprints(self) -> int:
        """How many fingerprints have runs that ended."""
        return len(self._ended)

    def load(self, runs: Iterable[Run], fingerprints: Mapping[str, Fingerprint], now_s: float) -> None:
        """Start from stored runs."""
        kept, model = list(runs), self._predictor.model
        self._fingerprints = dict(fingerprints)
        self._predictor = replays.build_predictor(kept, fingerprints, now_s=now_s, model=model)
        self._open = {run.uid: (run.seen_s, UNKNOWN) for run in kept if run.is_censored}
        self._finished = {run.uid for run in kept if not run.is_censored}
        self._ended = {}
        for run in kept:
            if not run.is_censored:
                self._ended[run.fingerprint] = self._ended.get(run.fingerprint, 0) + 1

    def use_model(self, model: RuntimeModel | None, version: str) -> None:
        """Use another model from now on; None: history alone."""
        self._predictor.use_model(model)
        self.model_version = version if model is not None else ""
        self.trained_s = model.header.trained_at_s if model is not None else None

    def observe(self, runs: Iterable[Run], fingerprints: Mapping[str, Fingerprint], now_s: float) -> None:
        """Follow runs that were recorded; drop those that are no longer seen."""
        self._fingerprints |= fingerprints
        for run in sorted(runs, key=lambda each: each.started_s):
            if run.uid in self._finished:
                continue
            if run.uid not in self._open:
                query = replays.make_run_query(run, self._fingerprints)
                self._open[run.uid] = (now_s, self._predictor.predict(query, now_s))
                self._predictor.submit(run.uid, query)
            if run.ended_s is None:
                self._open[run.uid] = (now_s, self._open[run.uid][1])
            else:
                self._end(run)
        for uid in [uid for uid, (seen_s, _) in self._open.items() if now_s - seen_s > _LOST_S]:
            self._predictor.forget(uid)
            del self._open[uid]

    def _end(self, run: Run) -> None:
        _, predicted = self._open.pop(run.uid)
        self._finished.add(run.uid)
        self._ended[run.fingerprint] = self._ended.get(run.fingerprint, 0) + 1
        self._predictor.end(run.uid, run.lasted_s, run.ended_s or run.seen_s)
        if predicted.is_known and predicted.median_s is not None:
            self._scored += 1
            rate = max(1 / self._scored, 1 / _MEMORY)
            is_inside = predicted.lower_s <= run.lasted_s <= predicted.upper_s
            self._error_s += rate * (abs(predicted.median_s - run.lasted_s) - self._error_s)
            self._covered += rate * (is_inside - self._covered)

    def predict(self, workload: WorkloadDescription, now_s: float) -> Prediction:
        """Return how long a workload will run if it starts now."""
        query = replays.make_query(
            workload.make_fingerprint(), now_s=now_s, user=workload.user, gpus=workload.gpus, pods=workload.pods
        )
        return self._predictor.predict(query, now_s)

    def predict_run(self, run: Run) -> float | None:
        """Return the median predicted for a run that has just started; None if it is unknown."""
        query = replays.make_run_query(run, self._fingerprints)
        return self._predictor.predict(query, run.started_s).median_s

    def count_runs(self, fingerprint: str) -> int:
        """Return how many runs of a fingerprint have ended."""
        return self._ended.get(fingerprint, 0)

    def fill_metrics(self, reply: pb.MetricsReply) -> None:
        """Fill in what is known and how good predictions were."""
        reply.model_version = self.model_version
        if self.trained_s is not None:
            reply.model_trained_s = self.trained_s
        reply.fingerprints = len(self._ended)
        reply.runs = sum(self._ended.values())
        drift = self._predictor.drift
        reply.is_drifting = drift is not None and drift.has_drifted
        if self._scored:
            reply.mean_absolute_error_s = self._error_s
            reply.interval_coverage = self._covered
