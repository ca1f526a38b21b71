"""The GPUs KGWE knows by name: what a GPU of each model is and can do.

Figures are those the driver and GPU feature discovery report (memory in whole MiB as nvidia-smi prints it),
not those of the brochure. A model that is not listed is an error where it is named, never a guess.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.model.gpu import mig

if TYPE_CHECKING:
    from collections.abc import Mapping


class Architecture(enum.StrEnum):
    """GPU generations, in the spelling of `spec.gpuRequirements.architecture`."""

    VOLTA = "Volta"
    TURING = "Turing"
    AMPERE = "Ampere"
    ADA = "Ada"
    HOPPER = "Hopper"
    BLACKWELL = "Blackwell"


# GPU feature discovery spells two of them differently.
_FAMILY: Final = {Architecture.ADA: "ada-lovelace"}

#: NVLink generation -> GB/s of one link in one direction
NVLINK_GB_PER_S: Final[Mapping[int, int]] = {2: 25, 3: 25, 4: 25, 5: 50}


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One model of GPU."""

    name: str
    """Our short name, used in fleet models."""
    product: str
    """What the driver calls it."""
    architecture: Architecture
    compute_capability: tuple[int, int]
    memory_mib: int
    idle_w: int
    limit_w: int
    sm_mhz: int
    """Highest SM clock."""
    memory_mhz: int
    nvlink_version: int = 0
    """0: the GPU has no NVLink."""
    nvlink_links: int = 0
    geometry: mig.Geometry | None = None
    """How MIG can cut it; None: not at all."""

    @property
    def label(self) -> str:
        """The value of nvidia.com/gpu.product."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.product)

    @property
    def family(self) -> str:
        """The value of nvidia.com/gpu.family."""
        return _FAMILY.get(self.architecture, self.architecture.lower())

    @property
    def reserved_mib(self) -> int:
        """Memory the driver keeps for itself: about 0.7 % on data-centre GPUs."""
        return self.memory_mib * 7 // 1000

    @property
    def has_memory_temperature(self) -> bool:
        """HBM has a thermometer; on GPUs with GDDR the sensor reads nothing."""
        return self.memory_mhz < _GDDR_MHZ

    @property
    def nvlink_gb_per_s(self) -> int:
        """All links together, one direction."""
        return self.nvlink_links * NVLINK_GB_PER_S.get(self.nvlink_version, 0)


# GDDR runs at 5 GHz and more, HBM below 4.
_GDDR_MHZ: Final = 4500

_KNOWN: Final = (
    GpuModel("V100-SXM2-16GB", "Tesla V100-SXM2-16GB", Architecture.VOLTA, (7, 0), 16384, 42, 300, 1530, 877, 2, 6),
    GpuModel("V100-SXM2-32GB", "Tesla V100-SXM2-32GB", Architecture.VOLTA, (7, 0), 32768, 43, 300, 1530, 877, 2, 6),
    GpuModel("T4", "Tesla T4", Architecture.TURING, (7, 5), 15360, 10, 70, 1590, 5001),
    GpuModel("A10", "NVIDIA A10", Architecture.AMPERE, (8, 6), 23028, 16, 150, 1695, 6251),
    GpuModel("A10G", "NVIDIA A10G", Architecture.AMPERE, (8, 6), 23028, 16, 300, 1710, 6251),
    GpuModel(
        "A30", "NVIDIA A30", Architecture.AMPERE, (8, 0), 24576, 28, 165, 1440, 1215, 3, 4, mig.GEOMETRIES["A30-24GB"]
    ),
    GpuModel(
        "A100-SXM4-40GB",
        "NVIDIA A100-SXM4-40GB",
        Architecture.AMPERE,
        (8, 0),
        memory_mib=40960,
        idle_w=54,
        limit_w=400,
        sm_mhz=1410,
        memory_mhz=1215,
        nvlink_version=3,
        nvlink_links=12,
        geometry=mig.GEOMETRIES["A100-40GB"],
    ),
    GpuModel(
        "A100-SXM4-80GB",
        "NVIDIA A100-SXM4-80GB",
        Architecture.AMPERE,
        (8, 0),
        memory_mib=81920,
        idle_w=62,
        limit_w=400,
        sm_mhz=1410,
        memory_mhz=1593,
        nvlink_version=3,
        nvlink_links=12,
        geometry=mig.GEOMETRIES["A100-80GB"],
    ),
    GpuModel("L4", "NVIDIA L4", Architecture.ADA, (8, 9), 23034, 13, 72, 2040, 6251),
    GpuModel("L40S", "NVIDIA L40S", Architecture.ADA, (8, 9), 46068, 35, 350, 2520, 9001),
    GpuModel(
        "H100-SXM5-80GB",
        "NVIDIA H100 80GB HBM3",
        Architecture.HOPPER,
        (9, 0),
        memory_mib=81559,
        idle_w=70,
        limit_w=700,
        sm_mhz=1980,
        memory_mhz=2619,
        nvlink_version=4,
        nvlink_links=18,
        geometry=mig.GEOMETRIES["H100-80GB"],
    ),
    GpuModel(
        "H200-SXM5-141GB",
        "NVIDIA H200",
        Architecture.HOPPER,
        (9, 0),
        memory_mib=143771,
        idle_w=76,
        limit_w=700,
        sm_mhz=1980,
        memory_mhz=3201,
        nvlink_version=4,
        nvlink_links=18,
        geometry=mig.GEOMETRIES["H200-141GB"],
    ),
    GpuModel(
        "B200-SXM6-180GB",
        "NVIDIA B200",
        Architecture.BLACKWELL,
        (10, 0),
        memory_mib=183359,
        idle_w=140,
        limit_w=1000,
        sm_mhz=1965,
        memory_mhz=3996,
        nvlink_version=5,
        nvlink_links=18,
        geometry=mig.GEOMETRIES["B200-180GB"],
    ),
    GpuModel(
        "GB200-186GB",
        "NVIDIA GB200",
        Architecture.BLACKWELL,
        (10, 0),
        memory_mib=189471,
        idle_w=150,
        limit_w=1200,
        sm_mhz=2062,
        memory_mhz=3996,
        nvlink_version=5,
        nvlink_links=18,
        geometry=mig.GEOMETRIES["GB200-186GB"],
    ),
)

CATALOGUE: Final[Mapping[str, GpuModel]] = {model.name: model for model in _KNOWN}
_BY_PRODUCT: Final = {text: model for model in _KNOWN for text in (model.product, model.label)}


def find_model(text: str) -> GpuModel:
    """The model of this short name, driver name or product label."""
    if model := CATALOGUE.get(text) or _BY_PRODUCT.get(text):
        return model
    raise errors.Permanent(f"no GPU model {text!r} is known; the models are {', '.join(CATALOGUE)}")


def name_matches(wanted: str, found: str | None) -> bool:
    """`H100` or `NVIDIA H100 80GB HBM3` against the label `NVIDIA-H100-80GB-HBM3`: every word must be there."""
    return _words(wanted) <= _words(found or "")


def _words(text: str) -> set[str]:
    return set(text.upper().replace("-", " ").replace("_", " ").split())
