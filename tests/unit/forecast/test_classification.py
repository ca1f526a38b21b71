"""The class of a workload."""

from __future__ import annotations

import numpy as np
import pytest

from kgwe.bench.workloads.classify import draw_facts, draw_usage
from kgwe.forecast.classification.classify import CLASSES, classify
from kgwe.forecast.classification.kinds import WorkloadClass
from kgwe.forecast.classification.usage import UsageSignature, find_period, measure_signature
from kgwe.forecast.podfacts import PodFacts
from kgwe.model.usage.window import Device, DeviceKey, PodKey, make_window

POD = PodKey("ns", "pod")


def make_usage(*, sharers: int = 1):
    return make_window(0.0, 30.0, 40, (Device(DeviceKey("node", "gpu", "", POD), sharers=sharers),))


def test_nothing_known_is_unknown():
    found = classify()
    assert found.kind is WorkloadClass.UNKNOWN
    assert found.reasons == ()
    assert sum(found.probabilities.values()) == pytest.approx(1)


def test_a_gap_says_nothing():
    assert classify(None, measure_signature(make_usage(), [0])).kind is WorkloadClass.UNKNOWN


def test_a_shared_device_says_nothing_about_one_pod():
    window = make_usage(sharers=2)
    window.activity[:] = 0.95
    assert not measure_signature(window, [0]).is_known


def test_training_and_fine_tuning_are_not_told_apart_by_usage():
    window = make_usage()
    window.activity[:] = 0.92
    found = classify(None, measure_signature(window, [0]))
    assert found.kind is WorkloadClass.UNKNOWN
    assert found.probabilities[WorkloadClass.TRAINING] == found.probabilities[WorkloadClass.FINE_TUNING] > 0.4


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (PodFacts(image="vllm/vllm-openai:v1", owner_kind="Deployment"), WorkloadClass.INFERENCE),
        (PodFacts(command=("torchrun", "pretrain.py"), owner_kind="PyTorchJob"), WorkloadClass.TRAINING),
        (PodFacts(command=("python", "finetune.py"), owner_kind="Job"), WorkloadClass.FINE_TUNING),
        (PodFacts(image="rapids/base", owner_kind="CronJob"), WorkloadClass.DATA_PREPROCESSING),
        (PodFacts(command=("rllib", "train"), owner_kind="RayJob"), WorkloadClass.REINFORCEMENT),
        (PodFacts(owner_kind="Notebook", ports=(8888,)), WorkloadClass.VISUALIZATION),
        (PodFacts(labels={"kgwe.nvidia.io/workload-type": "Inference"}), WorkloadClass.INFERENCE),
        (PodFacts(labels={"gpu-autoscaler.io/workload-type": "serving"}), WorkloadClass.INFERENCE),
        (PodFacts(image="team/app:1", owner_kind="Job"), WorkloadClass.UNKNOWN),
    ],
)
def test_specs_are_classified(facts, kind):
    found = classify(facts)
    assert found.kind is kind
    assert found.reasons


def test_reasons_say_what_counts_most_first():
    found = classify(PodFacts(image="vllm/vllm-openai", owner_kind="Deployment", has_probe=True))
    assert [reason.rule for reason in found.reasons] == ["named-Inference", "owner-service", "probe"]


def test_usage_and_spec_agree_on_simulated_workloads():
    wrong = [
        (kind, seed)
        for kind in CLASSES
        for seed in range(5)
        if classify(draw_facts(kind, seed), draw_usage(kind, seed)).kind not in (kind, WorkloadClass.UNKNOWN)
    ]
    assert len(wrong) <= 1


def test_a_period_is_found():
    wave = (np.arange(120) % 12 < 6).astype(np.float32)
    assert find_period(wave) == 12


@pytest.mark.parametrize("values", [np.full(50, 0.5), np.full(50, np.nan), np.zeros(3), np.arange(50.0)])
def test_no_period_is_unknown(values):
    assert np.isnan(find_period(values))


def test_few_samples_are_no_signature():
    assert not UsageSignature(steps=5, mean=0.9).is_known
