"""Training of run-time models: LightGBM on what was known at each submission.

LightGBM is imported here only. Where it or libgomp is missing, training answers with the reason, and predictions use
history alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kgwe.forecast.runtime.artifact import ModelHeader, RuntimeModel, digest_texts
from kgwe.forecast.runtime.conformal import calibrate
from kgwe.forecast.runtime.shortest import Answers, find_shortest
from kgwe.forecast.runtime.survival import weigh_ended

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kgwe.forecast.runtime.schema import Schema

    Floats = NDArray[np.float64]

COVERAGE: Final = 0.8
LEAST_ROWS: Final = 400
_ROUNDS: Final = (100, 200, 300, 400)
_TAIL_ROUNDS: Final = 150
_LATER: Final = 0.25
_MEDIAN: Final = {
    "objective": "huber",
    "alpha": 0.3,
    "num_leaves": 24,
    "max_depth": 7,
    "learning_rate": 0.04,
    "min_data_in_leaf": 60,
    "feature_fraction": 0.25,
}
_TAIL: Final = {
    "objective": "quantile",
    "num_leaves": 12,
    "max_depth": 5,
    "learning_rate": 0.06,
    "min_data_in_leaf": 60,
    "feature_fraction": 0.25,
}
_COMMON: Final = {
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "max_bin": 63,
    "verbose": -1,
    "deterministic": True,
    "force_col_wise": True,
}


@dataclass(frozen=True, slots=True)
class Untrained:
    """Why there is no model."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSet:
    """Features of runs at their submission, and how long they lasted so far. Rows are in the order of submission."""

    schema: Schema
    features: Floats
    lasted_s: Floats
    has_ended: NDArray[np.bool_]
    submitted_s: Floats

    def __len__(self) -> int:
        return len(self.lasted_s)


def train_model(data: TrainingSet, *, now_s: float, seed: int = 1, threads: int = 1) -> RuntimeModel | Untrained:
    """Return a model, or why none can be trained.

    The earlier runs choose the number of trees and the corrections of the intervals on the later ones. The final
    trees are then trained on all runs.
    """
    if int(data.has_ended.sum()) < LEAST_ROWS:
        return Untrained(f"{int(data.has_ended.sum())} finished runs are known, {LEAST_ROWS} are needed")
    try:
        import lightgbm  # noqa: PLC0415 -- slow to import, and absent where only histograms are wanted
    except (ImportError, OSError) as problem:
        return Untrained(f"LightGBM cannot be loaded: {problem}; install lightgbm and libgomp1")
    trainer = _Trainer(lightgbm, data, {**_COMMON, "seed": seed, "num_threads": threads})
    return trainer.train(now_s)


@dataclass(slots=True)
class _Trainer:
    lightgbm: Any
    data: TrainingSet
    common: dict[str, Any]

    def train(self, now_s: float) -> RuntimeModel:
        data = self.data
        cut = int(len(data) * (1 - _LATER))
        truth, estimate = np.log1p(data.lasted_s), data.features[:, 0]
        # A run that ended after the first later submission was not known then.
        known = data.submitted_s + data.lasted_s <= data.submitted_s[cut]
        early = np.flatnonzero((np.arange(len(data)) < cut) & data.has_ended & known)
        late = np.flatnonzero((np.arange(len(data)) >= cut) & data.has_ended)
        trial = self._fit(_MEDIAN, early, _ROUNDS[-1])
        errors = [np.abs(np.expm1(self._ask(trial, late, rounds)) - data.lasted_s[late]).mean() for rounds in _ROUNDS]
        rounds = _ROUNDS[int(np.argmin(errors))]
        median = self._ask(trial, late, rounds)
        shift = float(np.median(truth[late] - median))
        low, high = (
            self._ask(self._fit({**_TAIL, "alpha": alpha}, early, _TAIL_ROUNDS), late, _TAIL_ROUNDS)
            for alpha in (0.1, 0.9)
        )
        table = calibrate(median + shift, low, high, truth[late], COVERAGE)
        answers = Answers(median + shift, low, high, data.features[late][:, data.schema.ticks])
        shortest = find_shortest(answers, data.lasted_s[late], COVERAGE)
        every = np.flatnonzero(data.has_ended)
        texts = (
            self._fit({**_TAIL, "alpha": 0.1}, every, _TAIL_ROUNDS).model_to_string(),
            self._fit(_MEDIAN, every, rounds).model_to_string(),
            self._fit({**_TAIL, "alpha": 0.9}, every, _TAIL_ROUNDS).model_to_string(),
        )
        header = ModelHeader(
            feature_schema=data.schema.digest,
            trained_at_s=now_s,
            rows=len(every),
            first_s=float(data.submitted_s[0]),
            last_s=float(data.submitted_s[-1]),
            shift=shift,
            training_error=float(np.abs(truth[late] - median - shift).mean()),
            metrics={
                "later_mae_s": float(min(errors)),
                "later_history_mae_s": float(np.abs(np.expm1(estimate[late]) - data.lasted_s[late]).mean()),
                "rounds": float(rounds),
            },
            table=table,
            shortest=shortest,
            lengths=tuple(len(text) for text in texts),
            checksum=digest_texts(texts),
        )
        return RuntimeModel(header, texts)

    def _fit(self, parameters: dict[str, Any], rows: NDArray[np.intp], rounds: int) -> Any:
        """Train one model on the difference between the truth and the estimate, in log seconds."""
        data = self.data
        features = data.features[rows]
        weights = weigh_ended(data.lasted_s, data.has_ended)[rows]
        if parameters["objective"] == "huber":
            # An error of a tenth costs more seconds on a long run.
            weights = weights * np.expm1(np.maximum(features[:, 0], 0.1)) ** 0.5
        target = np.log1p(data.lasted_s[rows]) - features[:, 0]
        dataset = self.lightgbm.Dataset(features, target, weight=weights / weights.mean())
        return self.lightgbm.train({**self.common, **parameters}, dataset, rounds)

    def _ask(self, booster: Any, rows: NDArray[np.intp], rounds: int) -> Floats:
        features = self.data.features[rows]
        answer = booster.predict(features, num_iteration=rounds, num_threads=self.common["num_threads"])
        return np.asarray(answer + features[:, 0], dtype=np.float64)
