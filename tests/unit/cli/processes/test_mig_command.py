"""The table of `kgwe mig gpus`."""

from __future__ import annotations

import msgspec

from kgwe.cli.processes import mig
from kgwe.kube.api.kgwe.gpunode import GPUNode


def test_each_gpu_has_its_layout_and_the_desired_one() -> None:
    part = {"profile": "1g.5gb", "start": 0, "size": 1, "uuid": "MIG-0", "instanceID": 1, "memoryMiB": 4864}
    found = (
        {"capable": True, "enabled": True, "instances": [part]},
        {"capable": True, "enabled": True},
        {"capable": True, "phase": "Failed", "message": "no reset"},
        {"capable": False},
    )
    gpus = [
        {
            "uuid": f"GPU-{number}",
            "index": number,
            "model": "A100-SXM4-40GB",
            "memoryMiB": 40960,
            "health": {"state": "Healthy"},
            "mig": each,
        }
        for number, each in enumerate(found)
    ]
    spec = {"cards": [{"uuid": "GPU-0", "mig": {"enabled": True, "instances": ["1g.5gb@0"]}}]}
    node = msgspec.convert({"metadata": {"name": "a100-0000"}, "spec": spec, "status": {"gpus": gpus}}, GPUNode)

    assert list(mig._format_row(node)) == [
        ("a100-0000", "0", "1g.5gb@0", "1g.5gb@0", "-"),
        ("a100-0000", "1", "no slices", "-", "-"),
        ("a100-0000", "2", "whole GPU", "-", "Failed: no reset"),
    ]
    assert mig._HEADINGS == ("NODE", "GPU", "LAYOUT", "DESIRED", "PHASE")
