"""GCP lists GPUs and hosts in separate rows of a catalogue: the price of a node is the sum of both in its zone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ACCELERATORS: Final = "gcp"
_HOSTS: Final = "gcp-host"
_NAME: Final = re.compile(r"(a[234]-[a-z]+)gpu-(\d+)g(?:-nolssd)?")
_MODELS: Final = {
    "a2-high": "A100",
    "a2-mega": "A100",
    "a2-ultra": "A100-80GB",
    "a3-high": "H100",
    "a3-edge": "H100",
    "a3-mega": "H100-MEGA",
    "a3-ultra": "H200",
    "a4-high": "B200",
}
_G2: Final = "g2-standard-"
_L4_COUNTS: Final = {"4": 1, "8": 1, "12": 1, "16": 1, "32": 1, "24": 2, "48": 4, "96": 8}


class CatalogueRow(NamedTuple):
    """A row of a catalogue, in micro-dollars per hour."""

    where: str
    cloud: str
    instance_type: str
    accelerator: str
    gpus: str
    region: str
    zone: str
    on_demand: int | None
    spot: int | None


class GpuSet(NamedTuple):
    """The GPUs of an instance type."""

    family: str
    accelerator: str
    gpus: int


def find_gpus(instance_type: str) -> GpuSet | None:
    """Return the GPUs of a GCP instance type; None for a type that is not known."""
    if match := _NAME.fullmatch(instance_type):
        model = _MODELS.get(match[1])
        return GpuSet(match[1], model, int(match[2])) if model else None
    count = _L4_COUNTS.get(instance_type.removeprefix(_G2)) if instance_type.startswith(_G2) else None
    return GpuSet("g2", "L4", count) if count else None


def join_hosts(rows: Sequence[CatalogueRow]) -> Iterator[CatalogueRow]:
    """Return the rows with hosts and GPUs of GCP joined. Hosts and GPUs without the other part are left out."""
    gpus = {_gpu_key(each): each for each in rows if each.cloud == _ACCELERATORS and not each.instance_type}
    for row in rows:
        if row.cloud == _HOSTS:
            found = find_gpus(row.instance_type)
            gpu = gpus.get((found.accelerator, found.gpus, row.zone)) if found else None
            if gpu is not None:
                yield row._replace(
                    cloud=_ACCELERATORS,
                    on_demand=_add(row.on_demand, gpu.on_demand),
                    spot=_add(row.spot, gpu.spot),
                )
        elif row.instance_type:
            yield row


def _gpu_key(row: CatalogueRow) -> tuple[str, int, str]:
    digits = row.gpus.partition(".")[0]
    return row.accelerator, int(digits) if digits.isascii() and digits.isdigit() else 0, row.zone


def _add(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
