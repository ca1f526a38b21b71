"""Rules that read the use of GPUs over time. Comparisons with NaN are false, so what is unknown holds no rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.forecast.classification.kinds import Rule, WorkloadClass

if TYPE_CHECKING:
    from kgwe.forecast.classification.usage import UsageSignature

TRAINING, INFERENCE, TUNING = WorkloadClass.TRAINING, WorkloadClass.INFERENCE, WorkloadClass.FINE_TUNING
DATA, LEARNING, VISUAL = WorkloadClass.DATA_PREPROCESSING, WorkloadClass.REINFORCEMENT, WorkloadClass.VISUALIZATION

# High and low activity differ by more than this in bursts.
_BURST: Final = 0.15
_STEADY: Final = 0.1
_HIGH: Final = 0.55
# Between bursts a server rests; a learner goes on with its simulation.
_RESTING: Final = 0.13
# Tensor cores are used by training and serving, hardly by preparing data or drawing.
_NO_TENSOR: Final = 0.15
_FAST_S: Final = 60.0
_RARE: Final = 0.3
_OFTEN: Final = 0.4
_QUIET: Final = 0.05


def _is_bursty(use: UsageSignature) -> bool:
    return use.high - use.low > _BURST and use.spread > _STEADY / 2


def _is_steady_and_high(use: UsageSignature) -> bool:
    return use.low >= _HIGH and use.spread <= _STEADY


USAGE_RULES: Final[tuple[Rule[UsageSignature], ...]] = (
    # Training and fine-tuning use a GPU alike: usage alone never decides between them.
    Rule(
        "steady",
        "The GPU is busy without a break.",
        {TRAINING: 2.0, TUNING: 2.0, INFERENCE: -0.5, VISUAL: -2.0, LEARNING: -0.5},
        _is_steady_and_high,
    ),
    Rule(
        "bursts",
        "The GPU works in bursts.",
        {INFERENCE: 1.0, DATA: 1.0, LEARNING: 1.0, VISUAL: 1.0, TRAINING: -1.0, TUNING: -1.0},
        _is_bursty,
    ),
    Rule(
        "bursts-with-tensor",
        "Bursts use the tensor cores.",
        {INFERENCE: 1.5, LEARNING: 1.5, DATA: -1.5, VISUAL: -1.0},
        lambda use: _is_bursty(use) and use.tensor_ratio >= _NO_TENSOR,
    ),
    Rule(
        "bursts-without-tensor",
        "Bursts hardly use the tensor cores.",
        {DATA: 1.5, VISUAL: 1.5, INFERENCE: -1.5, LEARNING: -1.5},
        lambda use: _is_bursty(use) and use.tensor_ratio < _NO_TENSOR,
    ),
    Rule(
        "rest-between-bursts",
        "Between bursts the GPU rests.",
        {INFERENCE: 1.0, VISUAL: 0.5, LEARNING: -1.0},
        lambda use: _is_bursty(use) and use.low < _RESTING,
    ),
    Rule(
        "work-between-bursts",
        "Between bursts the GPU goes on with less.",
        {LEARNING: 1.5, INFERENCE: -0.5, VISUAL: -1.0, DATA: -0.5},
        lambda use: _is_bursty(use) and use.low >= _RESTING,
    ),
    Rule(
        "fast-cycle",
        "Bursts follow each other within a minute.",
        {LEARNING: 0.7, VISUAL: -0.5},
        lambda use: _is_bursty(use) and use.period_s < _FAST_S,
    ),
    Rule(
        "rare-bursts",
        "The GPU is busy in less than a third of the time.",
        {VISUAL: 1.5, DATA: -0.5},
        lambda use: _is_bursty(use) and use.duty < _RARE and use.low < _RESTING,
    ),
    Rule(
        "long-bursts-without-tensor",
        "Long bursts hardly use the tensor cores.",
        {DATA: 1.0},
        lambda use: _is_bursty(use) and use.tensor_ratio < _NO_TENSOR and use.duty >= _OFTEN,
    ),
    Rule(
        "slow-swing",
        "Activity follows the hours, as traffic does.",
        {INFERENCE: 1.5},
        lambda use: use.spread > _STEADY and use.period_s >= 6 * 3600,
    ),
    Rule(
        "quiet",
        "The GPU is hardly used.",
        {VISUAL: 0.5, INFERENCE: 0.3},
        lambda use: use.high < _QUIET,
    ),
)
