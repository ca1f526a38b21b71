"""The predictor: history first, a model where one is trained and still fits, unknown where nothing is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.forecast.runtime.conformal import AdaptiveIntervals
from kgwe.forecast.runtime.drift import DriftDetector
from kgwe.forecast.runtime.histogram import blend, find_quantiles
from kgwe.forecast.runtime.query import QUANTILES, UNKNOWN, Prediction
from kgwe.forecast.runtime.reasons import pick_reasons
from kgwe.forecast.runtime.shortest import Answers, ShortestIntervals
from kgwe.forecast.runtime.stream import RunStream
from kgwe.forecast.runtime.survival import add_running
from kgwe.forecast.runtime.trees import Forest, compile_models
from kgwe.model.units.phrasing import format_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kgwe.forecast.runtime.artifact import RuntimeModel
    from kgwe.forecast.runtime.query import Query
    from kgwe.forecast.runtime.schema import Schema

_PRIOR_RUNS: Final = 3.0
_MEDIAN: Final = 1
# Half of full confidence from this many runs of the finest known key.
_RUNS_FOR_HALF: Final = 4.0
# Runs that follow are compared with at most this many open predictions.
_MOST_OPEN: Final = 100_000


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer of a model: the median and the calibrated outer quantiles in log seconds, the rest in seconds."""

    median: float
    outer: tuple[float, float]
    middle_s: float
    """The median, on the grid of the durations that are possible."""
    interval_s: tuple[float, float]


@dataclass(slots=True)
class _Open:
    """A prediction of a run that has not ended, kept to be scored. The estimate of history is in log seconds."""

    answer: _Answer
    history: float


@dataclass(slots=True)
class Predictor:
    """Predictions of run times, and their scores against the ends that follow."""

    schema: Schema
    model: RuntimeModel | None = None
    stream: RunStream = field(init=False)
    drift: DriftDetector | None = field(init=False, default=None)
    _forest: Forest | None = field(init=False, default=None)
    _quantiles: AdaptiveIntervals | None = field(init=False, default=None)
    _intervals: ShortestIntervals | None = field(init=False, default=None)
    _open: dict[str, _Open] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.stream = RunStream(self.schema)
        self.use_model(self.model)

    def use_model(self, model: RuntimeModel | None) -> None:
        """Use another model from now on; None: history alone. History is kept."""
        self.model = model
        self._open.clear()
        if model is None:
            self._forest = self._quantiles = self._intervals = self.drift = None
            return
        self._forest = compile_models(model.texts, len(self.schema.names))
        self._quantiles = AdaptiveIntervals(model.header.table)
        self._intervals = ShortestIntervals(model.header.shortest)
        self.drift = DriftDetector(model.header.training_error)

    def submit(self, uid: str, query: Query) -> None:
        """Count a run as running, and remember what is predicted for it now."""
        if self._forest is not None and len(self._open) < _MOST_OPEN:
            row = np.array(self.stream.describe(query))
            self._open[uid] = _Open(self._calibrate(row, self._forest.predict(row)), float(row[0]))
        self.stream.submit(uid, query)

    def end(self, uid: str, lasted_s: float, at_s: float) -> None:
        """Count the end of a run. Its prediction is scored: intervals and drift detection follow."""
        self.stream.end(uid, lasted_s, at_s)
        self._score(uid, lasted_s)

    def forget(self, uid: str) -> None:
        """Drop a run that was cancelled or whose end is not known."""
        self.stream.forget(uid)
        self._open.pop(uid, None)

    def advance(self, now_s: float) -> None:
        """Apply the scheduled ends of a replay."""
        for uid, lasted_s in self.stream.advance(now_s):
            self._score(uid, lasted_s)

    def predict(self, query: Query, now_s: float | None = None) -> Prediction:
        """Return how long a run of this query will take if it is submitted now. Nothing is remembered."""
        now = query.submitted_s if now_s is None else now_s
        runs = self._count_known(query)
        if not runs:
            return UNKNOWN
        if self._forest is None or (self.drift is not None and self.drift.has_drifted):
            return self._answer_from_history(query, now, runs)
        return self._answer_from_model(query, runs)

    def _answer_from_model(self, query: Query, runs: int) -> Prediction:
        row = np.array(self.stream.describe(query))
        assert self._forest is not None  # noqa: S101 -- the caller checked
        values, moves = self._forest.explain(row, _MEDIAN)
        answer = self._calibrate(row, values)
        outer = (max(math.expm1(value), 0.0) for value in answer.outer)
        low, high = (bound(value, answer.middle_s) for bound, value in zip((min, max), outer, strict=True))
        similar = f"{format_count(runs, 'similar run')} took about {math.expm1(row[0]):.0f} s"
        return Prediction(
            is_known=True,
            quantiles=dict(zip(QUANTILES, (low, answer.middle_s, high), strict=True)),
            lower_s=answer.interval_s[0],
            upper_s=answer.interval_s[1],
            confidence=_judge_confidence(runs, low, high),
            reasons=(similar, *pick_reasons(self.schema.names, moves, 2)),
            source="model",
        )

    def _calibrate(self, row: NDArray[np.float64], values: NDArray[np.float64]) -> _Answer:
        """Return the answer for the values of the quantile models, which are differences to the estimate."""
        assert self._quantiles is not None  # noqa: S101 -- only called with a model
        assert self._intervals is not None  # noqa: S101
        assert self.model is not None  # noqa: S101
        low, median, high = (float(value) for value in values + row[0])
        median += self.model.header.shift
        found = Answers(np.asarray(median), np.asarray(low), np.asarray(high), row[self.schema.ticks])
        lower_s, middle_s, upper_s = self._intervals.find(found)
        return _Answer(median, self._quantiles.widen(median, low, high), middle_s, (lower_s, upper_s))

    def _answer_from_history(self, query: Query, now_s: float, runs: int) -> Prediction:
        levels = [self.stream.levels[key] for key in ("", *reversed(query.keys)) if key in self.stream.levels]
        known = [level.histogram.read(now_s) for level in levels]
        finest = query.keys[0]
        elapsed = [
            now_s - run.submitted_s
            for run in self.stream.running.values()
            if run.levels[0] is self.stream.levels.get(finest)
        ]
        known[-1] = add_running(known[-1], elapsed)
        low, median, high = find_quantiles(blend(known, _PRIOR_RUNS), QUANTILES)
        drifted = ("the model no longer fits recent runs, so history alone is used",)
        return Prediction(
            is_known=True,
            quantiles=dict(zip(QUANTILES, (low, median, high), strict=True)),
            lower_s=low,
            upper_s=high,
            confidence=_judge_confidence(runs, low, high),
            reasons=(
                f"{format_count(runs, 'similar run')} ended; 8 of 10 are expected between {low:.0f} and {high:.0f} s",
                *(drifted if self.drift is not None and self.drift.has_drifted else ()),
                *((f"{format_count(len(elapsed), 'run')} of it still running",) if elapsed else ()),
            ),
            source="history",
        )

    def _count_known(self, query: Query) -> int:
        """Return the ended runs of the finest key that has any. Runs that share no key with the query do not count."""
        for key in query.keys:
            level = self.stream.levels.get(key)
            if level is not None and level.ended:
                return level.ended
        return 0

    def _score(self, uid: str, lasted_s: float) -> None:
        before = self._open.pop(uid, None)
        if before is None or self._quantiles is None or self._intervals is None or self.drift is None:
            return
        answer, truth = before.answer, math.log1p(max(lasted_s, 0.0))
        self._quantiles.observe(answer.median, answer.outer, truth)
        self._intervals.observe(answer.interval_s, lasted_s)
        self.drift.observe(abs(truth - answer.median), abs(truth - before.history))


def _judge_confidence(runs: int, low: float, high: float) -> float:
    """Return 0 to 1: more with more runs and with a narrower interval relative to its middle."""
    spread = (high - low) / max(high + low, 1e-9)
    return round(runs / (runs + _RUNS_FOR_HALF) * (1.0 - 0.7 * min(spread, 1.0)), 3)
