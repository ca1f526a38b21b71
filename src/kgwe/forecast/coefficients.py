"""The coefficients that are shipped: measured on public data, written by `scripts/fit_interference.py`.

The file beside this module names its sources. Nothing in it comes from data that may not be redistributed.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.forecast.interference.model import Coefficients

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE: Final = "coefficients.json"


@dataclass(frozen=True, slots=True)
class Shipped:
    """Every coefficient of the package."""

    date: str
    sources: tuple[str, ...]
    interference: Coefficients
    communication: Mapping[str, Mapping[str, float]]
    """Model family -> `GPUs/nodes` -> step time over that on one node, such as `4/2` -> 1.4."""
    slices: Mapping[str, float]
    """Model family -> share of its time alone that grows when the GPU gets smaller, 0..1."""


@functools.cache
def load() -> Shipped:
    """Return the coefficients of this package."""
    return parse(resources.files("kgwe.forecast").joinpath(FILE).read_text("utf-8"))


def parse(text: str) -> Shipped:
    """Return the coefficients that a text holds."""
    try:
        found: dict[str, Any] = json.loads(text)
        interference = found["interference"]
        parts = (tuple(map(float, interference[name])) for name in ("offset", "sensitivity", "intensity"))
        return Shipped(
            found["date"],
            tuple(found["sources"]),
            Coefficients(*parts),
            {family: dict(ratios) for family, ratios in found["communication"].items()},
            {family: float(share) for family, share in found["slices"].items()},
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise errors.Permanent(
            f"{FILE} of the package is damaged ({problem!r}): install KGWE again, or run scripts/fit_interference.py"
        ) from problem
