"""Facts about pods with GPUs."""

import pytest
from tests.support.builders.optimizer_pods import START_S, make_pod, read

from kgwe.apps.optimizer.history import gpu_pods


def test_a_pod_without_gpus_has_no_facts():
    assert gpu_pods.read_facts(make_pod(limits={"cpu": "1"})) is None


def test_a_running_pod_has_a_start_and_no_end():
    facts = read()
    assert (facts.owner_kind, facts.owner_name, facts.run_uid) == ("Job", "train", "ml/uid-train")
    assert facts.started_s == START_S
    assert facts.ended_s is None
    assert not facts.is_ended


def test_an_ended_pod_has_both():
    facts = read(phase="Succeeded", ended="2026-11-01T10:10:00Z")
    assert facts.ended_s == START_S + 600
    assert facts.is_ended


def test_pods_of_a_gpuworkload_belong_to_it():
    facts = read(labels={"kgwe.nvidia.io/workload": "finetune"})
    assert (facts.owner_kind, facts.owner_name) == ("GPUWorkload", "finetune")


def test_a_pod_without_a_controller_is_a_run_of_its_own():
    facts = read(owner="", labels={"kgwe.nvidia.io/workload": "forged"})
    assert (facts.owner_kind, facts.run_uid) == ("Pod", "ml/pod-train-0")


@pytest.mark.parametrize(
    ("limits", "annotations", "milli", "profile"),
    [
        ({"nvidia.com/gpu": "8"}, {}, 8000, ""),
        ({"nvidia.com/mig-1g.10gb": "2"}, {}, 2000, "1g.10gb"),
        ({"nvidia.com/gpu.shared": "1"}, {"kgwe.nvidia.io/gpu-share": "0.25"}, 250, ""),
        ({"nvidia.com/gpu.shared": "1"}, {"kgwe.nvidia.io/gpu-share": "nan"}, 0, ""),
        ({"nvidia.com/gpu": "9223372036854775807"}, {}, 2**20 * 1000, ""),
    ],
)
def test_shapes(limits, annotations, milli, profile):
    shape = gpu_pods.read_shape(make_pod(limits=limits, annotations=annotations))
    assert shape is not None
    assert (shape.milli_gpus, shape.mig_profile) == (milli, profile)


def test_a_container_that_ran_out_of_gpu_memory_is_a_fact():
    oom = {"reason": "OOMKilled", "exitCode": 137}
    message = "a container ran out of GPU memory"
    (end,) = read(phase="Failed", ended="2026-11-01T10:10:00Z", terminated=oom, message=message).out_of_memory
    assert (end.at_s, end.is_gpu) == (START_S + 600, True)
    last = {
        "terminated": {"reason": "Error", "exitCode": 1, "message": "torch.cuda.OutOfMemoryError: CUDA out of memory."}
    }
    assert [each.is_gpu for each in read(last_state=last).out_of_memory] == [True]


def test_memory_of_the_node_is_another_fact():
    oom = {"reason": "OOMKilled", "exitCode": 137}
    (end,) = read(phase="Failed", ended="2026-11-01T10:10:00Z", terminated=oom).out_of_memory
    assert not end.is_gpu


def test_malformed_times_are_unknown():
    facts = read(started="yesterday")
    assert facts.started_s == START_S  # of the pod
