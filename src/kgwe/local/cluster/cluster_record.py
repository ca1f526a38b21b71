"""The record of a cluster on disk, by which later commands find, check and stop it.

`state.json` is replaced atomically after each change. A process is recorded right after its start. If the command is
killed in between, the mark in the process's environment still identifies it (see processes).
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
    # True once this start has completed.
    ready: bool = False
    # True once any start has completed: only then the data is worth keeping.
    resumable: bool = False
    processes: dict[str, ProcessRecord] = {}
    # Processes of the cluster outside the control plane (exporter, controller).
    sidecars: dict[str, ProcessRecord] = {}
    format: int = _FORMAT

    @property
    def everyone(self) -> dict[str, ProcessRecord]:
        return {**self.processes, **self.sidecars}


def load_record(directory: Path) -> ClusterRecord | None:
    """Return the record, or None if there is none."""
    path = directory / "state.json"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        state = msgspec.json.decode(data, type=ClusterRecord)
    except msgspec.DecodeError as exc:
        raise Permanent(
            f"cannot read {path} ({exc}).\nTo delete the cluster: `kgwe local down --name {directory.name}`."
        ) from exc
    if state.format != _FORMAT:
        raise Permanent(
            f"{path} was written by another version of kgwe.\n"
            f"To delete the cluster: `kgwe local down --name {directory.name}`."
        )
    return state


def save_record(directory: Path, state: ClusterRecord) -> None:
    temporary = directory / f".state.json.{os.getpid()}"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=1))
    temporary.replace(directory / "state.json")


def ports_of_others(name: str, root: Path | None) -> set[int]:
    """Return the recorded ports of other clusters, running or stopped."""
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
