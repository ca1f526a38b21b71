"""Whether a program takes GPU memory in advance, so that used memory is not needed memory.

vLLM, SGLang, Triton, JAX and TensorFlow reserve most of a GPU at the start, whatever they need. For such a pod the
memory need is unknown: advice only, never a smaller device. The evidence is the image, arguments and environment, or
memory that is flat within 1 % from minutes after the start. Metrics of the KV cache say how much of the reserved memory
is in use.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kgwe.forecast.podfacts import PodFacts

#: Gauges from 0 to 1, the newer name first.
KV_CACHE_METRICS: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
#: Memory of a program that allocates on demand moves more than this share.
FLAT_SHARE: Final = 0.01
#: The start is left out: every program fills memory then.
SETTLED_S: Final = 300.0
_LEAST_SAMPLES: Final = 10
# Small flat use is a CUDA context, not a reservation.
_LEAST_SHARE: Final = 0.5
_OFF: Final = frozenset({"false", "0", "no", "off"})
_ON: Final = frozenset({"true", "1", "yes", "on"})
_ENGINES: Final = {
    "vLLM": "vllm",
    "SGLang": "sglang",
    "Triton": "tritonserver|triton-inference-server",
    "JAX": "jax|maxtext|t5x|flax",
    "TensorFlow": "tensorflow|tf-serving|tensorflow_model_server",
}
# Engine -> arguments that set the reserved share of memory.
_SHARE_ARGUMENTS: Final = {"vLLM": "--gpu-memory-utilization", "SGLang": "--mem-fraction-static"}


class Answer(enum.StrEnum):
    """Whether a program preallocates."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Preallocation:
    """The answer with its evidence."""

    answer: Answer
    engine: str = ""
    evidence: tuple[str, ...] = ()
    reserved_share: float | None = None
    """Of the GPU's memory, if the arguments say it."""
    cache_used: float | None = None
    """Share of the KV cache in use, 0..1; None if it is not scraped."""

    @property
    def is_memory_need_known(self) -> bool:
        """Whether used memory may be read as needed memory."""
        return self.answer is Answer.NO


def detect_preallocation(
    facts: PodFacts,
    *,
    memory_share: NDArray[np.floating] | None = None,
    age_s: NDArray[np.floating] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Preallocation:
    """Return whether a pod preallocates.

    `memory_share`: used over total memory at each `age_s` after the start, NaN where it was not measured.
    """
    cache = read_cache_use(metrics or {})
    engine, evidence = _find_engine(facts)
    if cache is not None and not engine:
        engine, evidence = "vLLM", ["its metrics report a KV cache"]
    if engine:
        refusal = _find_refusal(facts, engine)
        if refusal:
            return Preallocation(Answer.NO, engine, (refusal,), None, cache)
        return Preallocation(Answer.YES, engine, tuple(evidence), _read_reserved_share(facts, engine), cache)
    return _judge_memory(memory_share, age_s)


def read_cache_use(metrics: Mapping[str, float]) -> float | None:
    """Return the share of the KV cache in use; None if no metric says it or its value is not a share."""
    for name in KV_CACHE_METRICS:
        value = metrics.get(name)
        if value is not None and 0.0 <= value <= 1.0:
            return float(value)
    return None


def _find_engine(facts: PodFacts) -> tuple[str, list[str]]:
    for engine, words in _ENGINES.items():
        if word := facts.find_word(words):
            return engine, [f"image or command names {word}"]
    if facts.framework.lower() in ("jax", "tensorflow"):
        engine = "JAX" if facts.framework.lower() == "jax" else "TensorFlow"
        return engine, [f"the workload declares framework {facts.framework}"]
    if "XLA_PYTHON_CLIENT_MEM_FRACTION" in facts.environment or "XLA_PYTHON_CLIENT_PREALLOCATE" in facts.environment:
        return "JAX", ["environment has XLA_PYTHON_CLIENT settings"]
    if "TF_FORCE_GPU_ALLOW_GROWTH" in facts.environment:
        return "TensorFlow", ["environment has TF_FORCE_GPU_ALLOW_GROWTH"]
    return "", []


def _find_refusal(facts: PodFacts, engine: str) -> str:
    """Return the setting that switches preallocation off; empty if there is none."""
    environment = facts.environment
    if engine == "JAX":
        if environment.get("XLA_PYTHON_CLIENT_PREALLOCATE", "").strip().lower() in _OFF:
            return "XLA_PYTHON_CLIENT_PREALLOCATE is off: JAX allocates on demand"
        if environment.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").strip().lower() == "platform":
            return "XLA_PYTHON_CLIENT_ALLOCATOR is platform: JAX allocates on demand"
    if engine == "TensorFlow" and environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "").strip().lower() in _ON:
        return "TF_FORCE_GPU_ALLOW_GROWTH is on: TensorFlow allocates on demand"
    return ""


def _read_reserved_share(facts: PodFacts, engine: str) -> float | None:
    text = facts.environment.get("XLA_PYTHON_CLIENT_MEM_FRACTION") if engine == "JAX" else None
    if engine in _SHARE_ARGUMENTS:
        text = facts.read_argument(_SHARE_ARGUMENTS[engine])
    try:
        share = float(text) if text else -1.0
    except ValueError:
        return None
    return share if 0.0 < share <= 1.0 else None


def _judge_memory(memory_share: NDArray[np.floating] | None, age_s: NDArray[np.floating] | None) -> Preallocation:
    if memory_share is None or age_s is None:
        return Preallocation(Answer.UNKNOWN, evidence=("neither spec nor memory says it",))
    settled = np.asarray(memory_share)[(np.asarray(age_s) >= SETTLED_S) & ~np.isnan(memory_share)]
    if len(settled) < _LEAST_SAMPLES:
        return Preallocation(Answer.UNKNOWN, evidence=(f"only {len(settled)} samples of memory after the start",))
    low, high = float(settled.min()), float(settled.max())
    if high - low > FLAT_SHARE * high:
        return Preallocation(Answer.NO, evidence=(f"memory moved between {low:.0%} and {high:.0%} of the GPU",))
    if high < _LEAST_SHARE:
        return Preallocation(Answer.UNKNOWN, evidence=(f"memory is flat, but only at {high:.0%} of the GPU",))
    return Preallocation(Answer.YES, evidence=(f"memory is flat at {high:.0%} of the GPU within {FLAT_SHARE:.0%}",))
