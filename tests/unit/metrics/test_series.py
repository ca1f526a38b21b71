"""Labels in all dialects name the same device and pod."""

from __future__ import annotations

import pytest

from kgwe.metrics.series import Dialect, identify_device
from kgwe.model.usage.window import DeviceKey, PodKey

TRAIN = DeviceKey("n1", "GPU-1", "", PodKey("team", "train"), "main")


@pytest.mark.parametrize(
    "labels",
    [
        {"Hostname": "n1", "pod": "train", "namespace": "team", "container": "main"},
        {"node": "n1", "pod": "train", "namespace": "team", "container": "main"},
        {"instance": "n1:9400", "pod": "train", "namespace": "team", "container": "main"},
        {"Hostname": "n1", "instance": "10.0.0.7:9400", "pod": "train", "namespace": "team", "container": "main"},
        {
            "Hostname": "n1",
            "pod": "dcgm-exporter-x7k2p",
            "namespace": "gpu-operator",
            "container": "exporter",
            "exported_pod": "train",
            "exported_namespace": "team",
            "exported_container": "main",
        },
        {"Hostname": "n1", "exported_pod": "train", "namespace": "team", "container": "main"},
    ],
)
def test_every_dialect_names_the_same_device_and_pod(labels):
    device = identify_device({"UUID": "GPU-1", **labels})
    assert device is not None
    assert device.key == TRAIN


@pytest.mark.parametrize("pod", ["dcgm-exporter-x7k2p", "nvidia-dcgm-exporter-abcde", "kgwe-agent-zz9q4"])
def test_a_pod_cannot_hide_by_its_name(pod):
    device = identify_device({"UUID": "GPU-1", "Hostname": "n1", "pod": pod, "namespace": "team"})
    assert device is not None
    assert device.key.pod == PodKey("team", pod)


def test_the_targets_pod_is_not_a_holder_once_the_source_renames_labels():
    labels = {"UUID": "GPU-1", "Hostname": "n1", "pod": "my-exporter-1", "namespace": "monitoring"}
    device = identify_device(labels, Dialect(exported=True))
    assert device is not None
    assert device.key.pod is None


def test_the_targets_container_is_not_the_pods():
    labels = {"exported_pod": "train", "exported_namespace": "team", "container": "exporter"}
    device = identify_device({"UUID": "GPU-1", "Hostname": "n1", **labels})
    assert device is not None
    assert device.key == TRAIN._replace(container="")


def test_an_address_with_brackets_loses_brackets_and_port():
    device = identify_device({"UUID": "GPU-1", "instance": "[fd00::1]:9400"})
    assert device is not None
    assert device.key.node == "fd00::1"


def test_a_slice_has_its_instance_and_profile():
    device = identify_device({"UUID": "GPU-1", "Hostname": "n1", "GPU_I_ID": "5", "GPU_I_PROFILE": "2g.20gb"})
    assert device is not None
    assert (device.key.instance, device.mig_profile) == ("5", "2g.20gb")


def test_labels_without_gpu_or_node_name_no_device():
    assert identify_device({"Hostname": "n1"}) is None
    assert identify_device({"UUID": "GPU-1"}) is None
    assert identify_device({"UUID": "G" * 1000, "Hostname": "n1"}) is None
