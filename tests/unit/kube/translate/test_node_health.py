"""What counts as a failed node or card."""

from __future__ import annotations

import msgspec
import pytest

from kgwe.kube.api.core import Node
from kgwe.kube.api.kgwe.gpunode import GPUNode
from kgwe.kube.translate.node_health import NodeFault, find_fault, sick_cards


def node(ready=None, *taints, unschedulable=False):
    conditions = [] if ready is None else [{"type": "Ready", "status": ready}]
    spec = {"unschedulable": unschedulable, "taints": [{"key": key, "effect": "NoExecute"} for key in taints]}
    return msgspec.convert({"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": conditions}}, Node)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, NodeFault.LOST),
        (node("Unknown"), NodeFault.LOST),
        (node("True", "node.kubernetes.io/unreachable"), NodeFault.LOST),
        (node("True", "node.kubernetes.io/out-of-service"), NodeFault.LOST),
        (node("False"), NodeFault.NOT_READY),
        (node(), NodeFault.NOT_READY),
        (node("True"), None),
        (node("True", "somebody.example/taint"), None),
        (node("True", unschedulable=True), None),
    ],
)
def test_faults(given, expected):
    assert find_fault(given) is expected


def test_only_cards_known_to_be_unhealthy_are_sick():
    states = ["Healthy", "Unhealthy", "Unknown", "Unhealthy"]
    gpus = [
        {"uuid": f"GPU-{i}", "index": i, "model": "H100", "memoryMiB": 1, "health": {"state": state}}
        for i, state in enumerate(states)
    ]
    body = {"metadata": {"name": "n"}, "spec": {}, "status": {"gpus": gpus}}
    assert sick_cards(msgspec.convert(body, GPUNode)) == 0b1010
    assert sick_cards(None) == 0
