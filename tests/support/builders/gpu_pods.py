"""Nodes of the mixed fleet and pods as the simulated kubelet sees them."""

from __future__ import annotations

from kgwe.kube.api.meta import ObjectMeta
from kgwe.local.fleet import gpupods, models
from kgwe.model.simfleet import inventory

NODES = {node.pool.name: node for node in inventory.expand_fleet(models.load("mixed"), 64)}


START = "2026-11-15T10:00:00Z"


def pod(name: str, gpus: int = 1, *, resource: str = "nvidia.com/gpu", start: str | None = START, **more: object):
    container = gpupods.Container(
        "main", gpupods.Resources(limits={resource: str(gpus)}) if gpus else gpupods.Resources()
    )
    return gpupods.GpuPod(
        ObjectMeta(name=name, namespace="team", uid=name, annotations=dict(more.get("annotations", {}))),  # type: ignore[call-overload] # a mapping
        gpupods.PodSpec("node", str(more.get("restart", "Never")), containers=(container,)),
        gpupods.PodStatus(str(more.get("phase", "Running")), start),
    )
