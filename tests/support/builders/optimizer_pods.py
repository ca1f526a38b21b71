"""Pods with GPUs as the optimizer reads them."""

from __future__ import annotations

from typing import Any

import msgspec

from kgwe.apps.optimizer.history import gpu_pods

START = "2026-11-01T10:00:00Z"
START_S = 1793527200.0


def make_pod(name: str = "train-0", **changes: Any) -> gpu_pods.GpuPod:
    """Return a running pod of Job `train` with one GPU. `phase`, `ended`, `terminated`, `owner`, … change it."""
    owner = changes.pop("owner", "train")
    controller = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": f"uid-{owner}", "controller": True}
    state: dict[str, Any] = {"running": {"startedAt": changes.pop("started", START)}}
    if ended := changes.pop("ended", None):
        state = {"terminated": {"startedAt": START, "finishedAt": ended, **changes.pop("terminated", {})}}
    status = {
        "phase": changes.pop("phase", "Running"),
        "startTime": START,
        "message": changes.pop("message", ""),
        "containerStatuses": [{"name": "main", "state": state, "lastState": changes.pop("last_state", {})}],
    }
    container = {
        "name": "main",
        "image": changes.pop("image", "ghcr.io/org/app:1"),
        "command": ["python", "train.py"],
        "resources": {"limits": changes.pop("limits", {"nvidia.com/gpu": "1"})},
    }
    metadata = {
        "name": name,
        "namespace": changes.pop("namespace", "ml"),
        "uid": changes.pop("uid", f"pod-{name}"),
        "creationTimestamp": "2026-11-01T09:59:00Z",
        "labels": changes.pop("labels", {}),
        "annotations": changes.pop("annotations", {}),
        "ownerReferences": [controller] if owner else [],
    }
    node = changes.pop("node", "n1")
    assert not changes, f"unknown: {sorted(changes)}"
    spec = {"nodeName": node, "containers": [container]}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, gpu_pods.GpuPod)


def read(name: str = "train-0", **changes: Any) -> gpu_pods.PodFacts:
    facts = gpu_pods.read_facts(make_pod(name, **changes))
    assert facts is not None
    return facts
