"""Recorded data of the scaling benchmarks: spot traces of a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kgwe import errors

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Metadata(msgspec.Struct):
    gap_seconds: float


class _Trace(msgspec.Struct):
    metadata: _Metadata
    data: list[int]


@dataclass(frozen=True, slots=True)
class SpotTrace:
    """Nodes of one spot pool, in equal steps."""

    name: str
    nodes: NDArray[np.int64]
    step_h: float

    @property
    def hours(self) -> float:
        return len(self.nodes) * self.step_h


def find_folder(given: Path | None, name: str) -> Path:
    """Return the given folder, else `name` in $KGWE_DATA or shared/data nearby. Raise NotFound where it is absent."""
    if given is not None:
        if given.is_dir():
            return given
        raise errors.NotFound(f"{given} is not a folder")
    named = os.environ.get("KGWE_DATA")
    places = [Path(named)] if named else [Path("shared/data"), Path("../shared/data")]
    for place in places:
        if (place / name).is_dir():
            return place / name
    looked = ", ".join(map(str, places))
    raise errors.NotFound(f"no {name} under {looked}; set KGWE_DATA to the folder that holds it, or name a folder")


def read_spot_traces(folder: Path, kind: str) -> list[SpotTrace]:
    """Return the traces whose file name begins with `kind`."""
    return [_read_trace(path) for path in sorted(folder.glob(f"{kind}*.json"))]


def _read_trace(path: Path) -> SpotTrace:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Trace)
    except (OSError, msgspec.MsgspecError) as problem:
        raise errors.Permanent(f"cannot read {path}: {problem}") from problem
    nodes = np.array(found.data, dtype=np.int64)
    if not len(nodes) or found.metadata.gap_seconds <= 0 or nodes.min() < 0:
        raise errors.Permanent(f"{path} has no steps, a step without length, or a negative number of nodes")
    return SpotTrace(path.stem, nodes, found.metadata.gap_seconds / 3600)
