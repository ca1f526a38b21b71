"""Parts of GPUs: what a slice or share is charged as, and how fast GPU models are beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.model.gpu import catalog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.model.gpu.catalog import GpuModel
    from kgwe.model.usage.window import Device

#: Model -> dense FP16 tensor TFLOP/s and memory GB/s, from the data sheets.
_SPEEDS: Final[Mapping[str, tuple[float, float]]] = {
    "T4": (65, 320),
    "A10": (125, 600),
    "A10G": (70, 600),
    "L4": (121, 300),
    "V100-SXM2-16GB": (125, 900),
    "V100-SXM2-32GB": (125, 900),
    "A30": (165, 933),
    "A100-SXM4-40GB": (312, 1555),
    "A100-SXM4-80GB": (312, 2039),
    "L40S": (362, 864),
    "H100-SXM5-80GB": (989, 3350),
    "H200-SXM5-141GB": (989, 4800),
    "B200-SXM6-180GB": (2250, 7700),
    "GB200-186GB": (2500, 8000),
}


def find_model(name: str) -> GpuModel | None:
    """Return the model with this name, product or label; None if the catalog does not have it."""
    try:
        return catalog.find_model(name)
    except errors.Permanent:
        return None


def charge_fraction(device: Device, sharers: int) -> float:
    """Return the part of a GPU that a device is charged as: a slice by its size, a share by the number of pods."""
    whole = slice_fraction(device.model, device.mig_profile) if device.mig_profile else 1.0
    return whole / max(sharers, 1)


def slice_fraction(model_name: str, profile_name: str) -> float:
    """Return the larger of a slice's parts of compute and memory: two `3g.40gb` fill a GPU.

    The part of an unknown slice is that of its compute in sevenths, and of an unreadable name the whole GPU.
    """
    model = find_model(model_name)
    if model and model.geometry and (profile := model.geometry.profiles.get(profile_name)):
        return max(profile.compute / model.geometry.compute, profile.units / model.geometry.units)
    compute = profile_name.partition("g.")[0]
    return min(int(compute) / 7, 1.0) if compute.isascii() and compute.isdecimal() else 1.0


def relative_speed(model: GpuModel, other: GpuModel) -> float | None:
    """Return the speed of `other` when `model` is 1, for work that is bound by the weaker of compute and memory."""
    mine, its = _SPEEDS.get(model.name), _SPEEDS.get(other.name)
    if mine is None or its is None:
        return None
    return min(its[0] / mine[0], its[1] / mine[1])
