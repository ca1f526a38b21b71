"""The classes of workloads, and a rule."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Facts = TypeVar("Facts")


class WorkloadClass(enum.StrEnum):
    """What a workload does; the values of `workloadType` in the API."""

    TRAINING = "Training"
    INFERENCE = "Inference"
    FINE_TUNING = "FineTuning"
    DATA_PREPROCESSING = "DataPreprocessing"
    REINFORCEMENT = "Reinforcement"
    VISUALIZATION = "Visualization"
    """Also interactive work, such as notebooks."""
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Rule(Generic[Facts]):
    """One observation and what it says about each class, in log odds."""

    name: str
    sentence: str
    weights: Mapping[WorkloadClass, float]
    holds: Callable[[Facts], bool]
