"""The file that describes the machine's topology, for data that the driver does not report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe import errors, text_files
from kgwe.model.gpu import catalog, fallback_wiring, machine_text

if TYPE_CHECKING:
    from kgwe.model.gpu.driver_data import Machine

_KEY: Final = "topologyFile"


class TopologyFile:
    """Text of `nvidia-smi topo -m`, or NCCL XML. It is read again at each discovery."""

    def __init__(self, path: str, problems: dict[str, str] | None = None) -> None:
        """`problems` gets, under topologyFile, the reason why the file is not used."""
        self._path = path
        self._problems = {} if problems is None else problems

    @property
    def problem(self) -> str:
        """Return why the file is not used; empty if it is used, or if there is none."""
        return self._problems.get(_KEY, "")

    def complete(self, machine: Machine) -> Machine:
        """Return the machine completed by the file; unchanged if the file cannot be used."""
        if not self._path or not machine.devices:
            return machine
        try:
            text = text_files.read_text(Path(self._path))
            described = machine_text.parse_machine(text, model=_model(machine))
            completed = fallback_wiring.complete_wiring(machine, described)
        except (OSError, UnicodeDecodeError, errors.KgweError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else str(exc)
            self._problems[_KEY] = f"{self._path}: {reason}"
            return machine
        self._problems.pop(_KEY, None)
        return completed


def _model(machine: Machine) -> catalog.GpuModel | None:
    try:
        return catalog.find_model(machine.devices[0].product)
    except errors.Permanent:
        return None
