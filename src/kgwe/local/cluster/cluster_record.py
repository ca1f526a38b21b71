"""What a cluster writes down about itself, so that any later command can find, judge and stop it.

`state.json` is replaced in one step after every change: a reader sees the old or the new truth, never half of it. A
process is written down right after it was started; should we be killed in between, the mark in its environment still
gives it away (see processes).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from kgwe.errors import Permanent
from kgwe.local.host import paths
from kgwe.local.host.processes import ProcessRecord  # noqa: TC001 -- msgspec resolves the annotation at run time

if TYPE_CHECKING:
    from pathlib import Path

_FORMAT = 1


class ClusterRecord(msgspec.Struct, frozen=True):
    name: str
    # Wall-clock seconds of the last start.
    started_at: float
    ports: dict[str, int]
    versions: dict[str, str]
    # Whether this start has finished.
    ready: bool = False
    # Whether any start has ever finished: only then the data is worth keeping.
    resumable: bool = False
    processes: dict[str, ProcessRecord] = {}
    # Processes that belong to the cluster but are not part of the control plane (exporter, controller).
    sidecars: dict[str, ProcessRecord] = {}
    format: int = _FORMAT

    @property
    def everyone(self) -> dict[str, ProcessRecord]:
        return {**self.processes, **self.sidecars}


def load_record(directory: Path) -> ClusterRecord | None:
    """What was written down; None when nothing was."""
    path = directory / "state.json"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        state = msgspec.json.decode(data, type=ClusterRecord)
    except msgspec.DecodeError as exc:
        raise Permanent(
            f"{path} cannot be read ({exc}).\nNext: `kgwe local down --name {directory.name}` removes the cluster."
        ) from exc
    if state.format != _FORMAT:
        raise Permanent(
            f"{path} was written by another version of kgwe.\n"
            f"Next: `kgwe local down --name {directory.name}` removes the cluster."
        )
    return state


def save_record(directory: Path, state: ClusterRecord) -> None:
    temporary = directory / f".state.json.{os.getpid()}"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=1))
    temporary.replace(directory / "state.json")


def ports_of_others(name: str, root: Path | None) -> set[int]:
    """Ports that belong to other clusters, running or stopped."""
    ports: set[int] = set()
    for other in paths.cluster_names(root):
        if other == name:
            continue
        try:
            state = load_record(paths.cluster_directory(other, root))
        except Permanent:
            continue
        if state is not None:
            ports.update(state.ports.values())
    return ports
