"""Wasteful workloads of several kinds, the fleet for them, and how they change when advice is followed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import yaml

from kgwe import errors
from kgwe.local.fleet import models
from kgwe.model.gpu import catalog
from kgwe.model.simfleet import model_file, usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.model.simfleet.model_file import Fleet

A100: Final = "A100-SXM4-80GB"
L40S: Final = "L40S"
_GPUS_PER_NODE: Final = 8
# Room beyond the devices that are needed, so that several GPUs of one node are found.
_SPARE: Final = 1.2


@dataclass(frozen=True, slots=True)
class Waste:
    """One way to waste GPUs."""

    name: str
    model: str
    gpus: int
    profile: str
    action: str
    """The expected recommendation."""


KINDS: Final = (
    Waste("small", A100, 1, "constant(util=0.06, mem=0.08, dram=0.03, tensor=0.02, noise=0.01)", "MIGProfile"),
    Waste("medium", A100, 1, "constant(util=0.25, mem=0.2, dram=0.1, tensor=0.1, noise=0.01)", "MIGProfile"),
    Waste("share", L40S, 1, "constant(util=0.06, mem=0.08, dram=0.03, tensor=0.02, noise=0.01)", "Share"),
    Waste("many", A100, 4, "constant(util=0.15, mem=0.15, dram=0.1, tensor=0.1, noise=0.01)", "FewerGPUs"),
    Waste("memory", A100, 1, "constant(util=0.2, mem=0.45, dram=0.1, tensor=0.1, noise=0.01)", "SmallerGPU"),
    Waste("pair", A100, 2, "constant(util=0.3, mem=0.3, dram=0.1, tensor=0.1, noise=0.01)", "FewerGPUs"),
    Waste("idle", A100, 1, "idle(mem=0.3)", "Suspend"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a workload asks for: whole GPUs, slices of a profile, or a share of one GPU."""

    model: str
    gpus: int = 0
    mig_profile: str = ""
    share: float = 0.0

    def write_requirements(self) -> dict[str, Any]:
        """Return it as gpuRequirements of a GPUWorkload."""
        wanted: dict[str, Any] = {"gpuModel": catalog.find_model(self.model).label}
        if self.mig_profile:
            return {**wanted, "mig": {"profile": self.mig_profile, "count": self.gpus}}
        return {**wanted, "share": self.share} if self.share else {**wanted, "count": self.gpus}


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload of the benchmark."""

    name: str
    waste: Waste
    shape: Shape
    profile: str

    def write_manifest(self) -> dict[str, Any]:
        """Return it as a GPUWorkload."""
        annotations = {"kgwe.nvidia.io/simulated-duration": "24h", usage.ANNOTATION: self.profile}
        container = {"name": "main", "image": f"registry.example/{self.waste.name}:1"}
        return {
            "apiVersion": "kgwe.nvidia.io/v1",
            "kind": "GPUWorkload",
            "metadata": {"name": self.name},
            "spec": {
                "gpuRequirements": self.shape.write_requirements(),
                "workloadType": "Inference",
                "podTemplate": {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}},
            },
        }


def make_workloads(count: int) -> list[Workload]:
    """Return so many workloads, the kinds in turn."""
    chosen = [KINDS[number % len(KINDS)] for number in range(count)]
    return [
        Workload(f"{waste.name}-{number:03}", waste, Shape(waste.model, waste.gpus), waste.profile)
        for number, waste in enumerate(chosen)
    ]


def make_fleet(workloads: Sequence[Workload], room: float = 1.0) -> tuple[Fleet, int]:
    """Return a fleet with room for the workloads as they are, and its number of nodes.

    `room`: the part of what they will be for which there is room too.
    """
    moving = {kind.name: sum(each.waste is kind for each in workloads) for kind in KINDS}
    whole = sum(each.waste.gpus for each in workloads if each.waste.model == A100)
    small = math.floor(room * math.ceil(moving["small"] / 7))
    medium = math.floor(room * math.ceil(moving["medium"] / 2))
    pools = [
        _write_pool("a100", "hgx-a100", whole * _SPARE),
        _write_cut_pool("a100-small", small, [f"1g.10gb@{start}" for start in range(7)]),
        _write_cut_pool("a100-medium", medium, ["3g.40gb@0", "3g.40gb@4"]),
        _write_pool("l40s", "l40s", moving["share"] + room * moving["memory"]),
        _write_pool("l40s-shared", "l40s", room * moving["share"] / 8, pieces=8),
    ]
    text = {
        "name": "advice",
        "description": "room for wasteful workloads and for smaller ones",
        "region": "us-east-1",
        "zones": ["us-east-1a"],
        "include": ["hgx-a100", "l40s"],
        "pools": pools,
    }
    fleet = model_file.parse(
        yaml.safe_dump(text),
        where="the benchmark's fleet",
        include=lambda name: models.find(name).read_text(),
    )
    return fleet, sum(pool["weight"] for pool in pools)


def _write_pool(name: str, machine: str, gpus: float, **more: Any) -> dict[str, Any]:
    nodes = max(math.ceil(gpus / _GPUS_PER_NODE), 1)
    return {"name": name, "machine": machine, "instanceType": machine, "weight": nodes, **more}


def _write_cut_pool(name: str, gpus: int, layout: list[str]) -> dict[str, Any]:
    """Return a pool with about so many GPUs cut; the others of its nodes stay whole."""
    pool = _write_pool(name, "hgx-a100", gpus)
    each = max(math.ceil(gpus / pool["weight"]), 1)
    return {**pool, "mig": {"strategy": "mixed", "layout": layout, "gpus": list(range(each))}}


_SLICE: Final = re.compile(r"MIG profile (\S+)")
_SHARE: Final = re.compile(r"1/(\d+) of a GPU")
_GPUS: Final = re.compile(r"(\d+) x (.+)")


def follow_advice(workload: Workload, action: str, target: str) -> Workload:
    """Return the workload as advised. It does the same work, which is a larger part of a smaller device."""
    shape = workload.shape
    if action == "MIGProfile" and (found := _SLICE.fullmatch(target)):
        new = Shape(shape.model, 1, mig_profile=found[1])
    elif action == "Share" and (found := _SHARE.fullmatch(target)):
        new = Shape(shape.model, 1, share=1 / int(found[1]))
    elif action in {"SmallerGPU", "FewerGPUs"} and (found := _GPUS.fullmatch(target)):
        new = Shape(catalog.find_model(found[2]).name, int(found[1]))
    else:
        raise errors.Permanent(f"{workload.name}: the recommendation {action} {target!r} cannot be followed")
    return replace(workload, shape=new, profile=_scale_profile(workload.profile, shape, new))


def _scale_profile(profile: str, old: Shape, new: Shape) -> str:
    """Return the use of the new devices by the same work. Shares keep theirs: metrics show the whole GPU."""
    if new.share:
        return profile
    before, after = (each.gpus * _device_memory(each) for each in (old, new))
    factor = before / after if after else 1.0
    return re.sub(
        r"(util|mem|dram|tensor)=([\d.]+)", lambda m: f"{m[1]}={min(float(m[2]) * factor, 0.85):.3f}", profile
    )


def _device_memory(shape: Shape) -> float:
    model = catalog.find_model(shape.model)
    if shape.mig_profile and model.geometry is not None:
        return float(model.geometry.profiles[shape.mig_profile].memory_mib)
    return float(model.memory_mib)
