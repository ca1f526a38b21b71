"""GPUs and slices of one node, as a plan assigns them to a pod and as a pod holds them.

GPUs are numbered as by the driver; a set of whole GPUs is a mask, a slice is (GPU, first memory slice). On objects they
are text: GPUs as a hexadecimal mask, slices as `gpu@start,gpu@start`. Annotations can be edited: a value that KGWE
would not have written is ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: GPUs planned for a pod, as a hexadecimal mask
CARDS_ANNOTATION: Final = "kgwe.nvidia.io/cards"
#: slices planned for a pod
SLICES_ANNOTATION: Final = "kgwe.nvidia.io/slices"

# GPUs have 63 numbers at most, four to a digit.
_MASK: Final = re.compile("[0-9a-f]{1,16}")
_SLICE: Final = re.compile("([0-9]{1,3})@([0-9]{1,3})")
_HEX: Final = 16

Slices = tuple[tuple[int, int], ...]
"""(GPU, start) of MIG slices."""


@dataclass(frozen=True, slots=True)
class DeviceSet:
    """GPUs and slices of one node."""

    gpus: int = 0
    slices: Slices = ()

    def __bool__(self) -> bool:
        return bool(self.gpus or self.slices)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The whole GPUs, lowest first."""
        return tuple(gpu for gpu in range(self.gpus.bit_length()) if self.gpus >> gpu & 1)

    def is_subset(self, other: DeviceSet) -> bool:
        return not self.gpus & ~other.gpus and set(self.slices) <= set(other.slices)

    def __str__(self) -> str:
        whole = [f"GPU {gpu}" for gpu in self.numbers]
        return ", ".join([*whole, *(f"slice {text}" for text in format_slices(self.slices))]) or "nothing"


NO_DEVICES: Final = DeviceSet()


def format_mask(mask: int) -> str:
    return f"{mask:x}"


def parse_mask(text: str) -> int:
    """0 when it is not a mask."""
    return int(text, _HEX) if _MASK.fullmatch(text) else 0


def format_slices(slices: Iterable[tuple[int, int]]) -> tuple[str, ...]:
    return tuple(f"{gpu}@{start}" for gpu, start in slices)


def parse_slices(texts: Iterable[str]) -> Slices:
    """Empty when any of them is not a slice."""
    parts = [_SLICE.fullmatch(text) for text in texts]
    return tuple((int(part[1]), int(part[2])) for part in parts if part) if all(parts) else ()


def format_annotations(places: DeviceSet) -> dict[str, str]:
    """What is written on a pod for which these are planned."""
    found = {CARDS_ANNOTATION: format_mask(places.gpus)} if places.gpus else {}
    if places.slices:
        found[SLICES_ANNOTATION] = ",".join(format_slices(places.slices))
    return found


def parse_planned_up_to(annotations: Mapping[str, str], most: int) -> DeviceSet:
    """What was planned for a pod that asks for `most` devices; nothing when it names more.

    For readers that have no key to check signatures with: a forged plan then claims no more than the pod would get.
    """
    found = parse_planned(annotations)
    return found if found.gpus.bit_count() + len(found.slices) <= most else NO_DEVICES


def parse_planned(annotations: Mapping[str, str]) -> DeviceSet:
    """What was planned for a pod; nothing when it does not say, or not readably."""
    slices = annotations.get(SLICES_ANNOTATION, "")
    return DeviceSet(
        parse_mask(annotations.get(CARDS_ANNOTATION, "")), parse_slices(slices.split(",")) if slices else ()
    )
