"""Whether a model still fits: its recent error against its error in training and against history alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_WINDOW: Final = 200
# Errors may be this much larger than in training before their excess counts (Page-Hinkley).
_TOLERANCE: Final = 0.15
_THRESHOLD: Final = 12.0


@dataclass(slots=True)
class DriftDetector:
    """Page-Hinkley on the absolute error in log seconds, in units of the error in training."""

    training_error: float
    model_error: float = 0.0
    history_error: float = 0.0
    excess: float = 0.0
    seen: int = 0
    has_drifted: bool = False

    def observe(self, model_error: float, history_error: float) -> None:
        """Count one end. Drift: errors grew beyond training and the model is worse than history alone."""
        self.seen += 1
        rate = max(1 / self.seen, 1 / _WINDOW)
        self.model_error += rate * (model_error - self.model_error)
        self.history_error += rate * (history_error - self.history_error)
        ratio = min(model_error / max(self.training_error, 1e-6), 10.0)
        self.excess = max(self.excess + ratio - 1.0 - _TOLERANCE, 0.0)
        if self.excess > _THRESHOLD and self.model_error > self.history_error:
            self.has_drifted = True
        elif self.has_drifted and self.model_error < 0.98 * self.history_error:
            self.has_drifted, self.excess = False, 0.0
