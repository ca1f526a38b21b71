"""Programs that take GPU memory in advance."""

from __future__ import annotations

import numpy as np
import pytest

from kgwe.forecast.podfacts import PodFacts
from kgwe.forecast.preallocators import Answer, detect_preallocation, read_cache_use

AGES = np.arange(0.0, 1800.0, 60.0)


@pytest.mark.parametrize(
    ("facts", "engine"),
    [
        (PodFacts(image="vllm/vllm-openai:v0.11"), "vLLM"),
        (PodFacts(command=("python", "-m", "sglang.launch_server")), "SGLang"),
        (PodFacts(image="nvidia/tritonserver:25.01"), "Triton"),
        (PodFacts(image="lab/maxtext:1"), "JAX"),
        (PodFacts(framework="TensorFlow"), "TensorFlow"),
        (PodFacts(environment={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"}), "JAX"),
    ],
)
def test_engines_are_recognised_by_their_spec(facts, engine):
    found = detect_preallocation(facts)
    assert (found.answer, found.engine) == (Answer.YES, engine)
    assert found.evidence
    assert not found.is_memory_need_known


@pytest.mark.parametrize(
    "facts",
    [
        PodFacts(image="lab/jax:1", environment={"XLA_PYTHON_CLIENT_PREALLOCATE": "False"}),
        PodFacts(framework="JAX", environment={"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
        PodFacts(image="tensorflow/tensorflow", environment={"TF_FORCE_GPU_ALLOW_GROWTH": "true"}),
    ],
)
def test_a_setting_that_switches_it_off_is_believed(facts):
    assert detect_preallocation(facts).answer is Answer.NO


@pytest.mark.parametrize(
    ("command", "share"),
    [
        (("vllm", "serve", "--gpu-memory-utilization", "0.85"), 0.85),
        (("vllm", "serve", "--gpu-memory-utilization=0.5"), 0.5),
        (("vllm", "serve", "--gpu-memory-utilization=many"), None),
        (("vllm", "serve", "--gpu-memory-utilization"), None),
        (("vllm", "serve"), None),
    ],
)
def test_the_reserved_share_is_read_from_arguments(command, share):
    assert detect_preallocation(PodFacts(command=command)).reserved_share == share


def test_flat_memory_after_the_start_is_a_reservation():
    memory = np.where(AGES < 300, 0.1, 0.9)
    assert detect_preallocation(PodFacts(), memory_share=memory, age_s=AGES).answer is Answer.YES


def test_memory_that_moves_is_none():
    memory = 0.5 + 0.1 * np.sin(AGES)
    assert detect_preallocation(PodFacts(), memory_share=memory, age_s=AGES).answer is Answer.NO


def test_little_flat_memory_is_unknown():
    memory = np.full(len(AGES), 0.05)
    assert detect_preallocation(PodFacts(), memory_share=memory, age_s=AGES).answer is Answer.UNKNOWN


def test_a_gap_is_unknown():
    memory = np.full(len(AGES), np.nan)
    assert detect_preallocation(PodFacts(), memory_share=memory, age_s=AGES).answer is Answer.UNKNOWN
    assert detect_preallocation(PodFacts()).answer is Answer.UNKNOWN


def test_words_inside_other_words_are_not_engines():
    assert detect_preallocation(PodFacts(image="team/ajaxify:1")).answer is Answer.UNKNOWN


def test_cache_metrics_are_read_under_both_names():
    assert read_cache_use({"vllm:gpu_cache_usage_perc": 0.3}) == 0.3
    assert read_cache_use({"vllm:kv_cache_usage_perc": 0.4, "vllm:gpu_cache_usage_perc": 0.3}) == 0.4
    assert read_cache_use({"vllm:kv_cache_usage_perc": float("nan")}) is None
    assert read_cache_use({}) is None
    assert detect_preallocation(PodFacts(), metrics={"vllm:kv_cache_usage_perc": 0.4}).cache_used == 0.4
