"""Texts of a status quote what users wrote."""

from __future__ import annotations

from dataclasses import replace

from kgwe.cluster.workload.workload import from_kgwe, status_patch
from kgwe.kube.api.kgwe.gpu_requirements import GPURequirements
from kgwe.kube.api.kgwe.gpuworkload import GPUWorkload, GPUWorkloadSpec
from kgwe.kube.api.meta import Condition, ObjectMeta

ATTACK = "\x1b[2J\x07\u202e"
SHOWN = r"\u001b[2J\u0007\u202e"


def test_control_characters_are_escaped_in_messages_and_conditions() -> None:
    workload = from_kgwe(
        GPUWorkload(metadata=ObjectMeta("w", "default"), spec=GPUWorkloadSpec(GPURequirements(count=1)))
    )
    told = replace(workload.status, message=ATTACK, conditions=(Condition("Scheduled", "False", "No", ATTACK),))
    patch = status_patch(workload, told)
    assert patch is not None
    assert patch["status"]["message"] == SHOWN
    assert patch["status"]["conditions"][0]["message"] == SHOWN
    written = replace(told, message=SHOWN, conditions=(Condition("Scheduled", "False", "No", SHOWN),))
    assert status_patch(replace(workload, status=written), told) is None, "written once"


def test_escaped_messages_are_no_longer_than_the_api_server_takes() -> None:
    workload = from_kgwe(GPUWorkload(ObjectMeta("w", "default"), GPUWorkloadSpec(GPURequirements(count=1))))
    told = replace(workload.status, message="\x1b" * 4096, certificate="\x1b" * 4096)
    patch = status_patch(workload, told)
    assert patch is not None
    assert len(patch["status"]["message"]) == len(patch["status"]["reasons"]) == 4096
    written = replace(told, message=patch["status"]["message"], certificate=patch["status"]["reasons"])
    assert status_patch(replace(workload, status=written), told) is None, "written once"
