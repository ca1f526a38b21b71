"""A simulated machine: a directory with a driver library, the state of its GPUs, nvidia-smi and a sysfs tree.

    hardware = Hardware.create(folder, node)          # a node of a fleet model
    driver = NvmlDriver(library=hardware.library, smi=hardware.smi, sysfs=hardware.sysfs)
    hardware.xid(3, 79)                               # an error on GPU 3

The state is a file that all processes map: it outlives them, and many can use it at once. Each directory has its own
copy of the library, so one process can load many machines (the loader treats two links to one file as one library).
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import filecmp
import mmap
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kgwe.errors import InvariantBroken, NotFound, Permanent
from kgwe.local.host.lock import Lock
from kgwe.local.nvml import blueprint, build, state, sysfs_tree
from kgwe.local.nvml.build import Generation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kgwe.model.simfleet.inventory import FleetNode

STATE_FILE: Final = "nvml.state"
SYSFS_FOLDER: Final = "sys"

_XID_EVENT: Final = 0x8
_LOCK_TIMEOUT_S: Final = 60.0
_FOR_EVER: Final = -1
_DIE_BEFORE, _DIE_AFTER = -1, -2


class Code(enum.IntEnum):
    """Return codes that a call can be set to return, as NVML's numbers."""

    UNINITIALIZED = 1
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    INSUFFICIENT_RESOURCES = 23
    UNKNOWN = 999


class Kind(enum.IntEnum):
    """The kind of a process on a GPU."""

    COMPUTE = 0
    GRAPHICS = 1
    MPS = 2


@dataclass(frozen=True, slots=True)
class Cut:
    """A MIG instance as the hardware has it, not as a driver reports it."""

    instance_id: int
    profile: str
    start: int
    uuids: tuple[str, ...]
    """Of its compute instances."""


class Hardware:
    """Simulates the machine. Changes are made under the lock that the library takes for each call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.library = folder / build.LIBRARY
        self.smi = folder / build.SMI
        self.sysfs = folder / SYSFS_FOLDER
        self._declare_control = _declare_control(self.library)
        with (folder / STATE_FILE).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), ctypes.sizeof(state.State))
        self._state = state.State.from_buffer(self._memory)
        if self._state.magic != state.MAGIC or self._state.size != ctypes.sizeof(state.State):
            raise Permanent(f"{folder / STATE_FILE} was not written by this version of the simulated GPUs")

    @classmethod
    def create(cls, folder: Path, node: FleetNode, *, generation: Generation = Generation.NEW) -> Hardware:
        """Build the machine in a directory, or open it as it was left; one of another version is rebuilt."""
        built = build.ensure(generation)
        folder.mkdir(parents=True, exist_ok=True)
        with Lock(folder / "lock", purpose="building a simulated machine").hold(timeout_s=_LOCK_TIMEOUT_S):
            # The state is written last and shows that the machine is complete.
            if not (folder / STATE_FILE).exists() or not _is_of(built, folder):
                _assemble(folder, built, node)
        return cls(folder)

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment by which a process finds this machine."""
        return {
            "KGWE_NVML_LIBRARY": str(self.library),
            "KGWE_NVIDIA_SMI": str(self.smi),
            "KGWE_SYSFS": str(self.sysfs),
        }

    @contextlib.contextmanager
    def lock_state(self) -> Iterator[state.State]:
        """Yield the raw state under the lock, for changes without a method."""
        self._declare_control.kgweLock(ctypes.byref(self._state))
        try:
            yield self._state
        finally:
            self._declare_control.kgweUnlock(ctypes.byref(self._state))

    def close(self) -> None:
        """Close the state; it stays on disk."""
        del self._state
        self._memory.close()

    # --- events ---------------------------------------------------------------------------------------------

    def report_xid(self, card: int, number: int, *, instance_id: int | None = None) -> None:
        """Report an XID error."""
        with self.lock_state() as now:
            event = now.events[now.events_written % state.MAX_EVENTS]
            event.type, event.data, event.gpu = _XID_EVENT, number, card
            event.gpu_instance = _instance(instance_id)
            event.compute_instance = _instance(None if instance_id is None else 0)
            now.events_written += 1
            self._declare_control.kgweWake(ctypes.byref(now))

    def lose(self, card: int, *, lost: bool = True) -> None:
        """Take the GPU off the bus, or bring it back."""
        self.set(card, lost=lost)

    def set(self, card: int, **values: int) -> None:
        """Set readings and counters by the names of `state.Gpu`: util, memory_util (percent), power_mw, gpu_c, …."""
        with self.lock_state() as now:
            for name, value in values.items():
                if not hasattr(now.gpus[card], name):
                    raise Permanent(f"a GPU has no {name!r}")
                setattr(now.gpus[card], name, value)

    def set_link(self, card: int, link: int, **values: int) -> None:
        """Set `up`, `speed_mbps`, `tx_kib`, `rx_kib`, or error counters (`replays`, `recoveries`, `crc`) of a link."""
        counters = {"replays": 0, "recoveries": 1, "crc": 2}
        with self.lock_state() as now:
            found = now.gpus[card].links[link]
            if not found.present:
                raise NotFound(f"GPU {card} has no link {link}")
            for name, value in values.items():
                if name in counters:
                    found.errors[counters[name]] = value
                else:
                    setattr(found, name, value)

    def set_retired_pages(self, card: int, *, single_bit: int = 0, double_bit: int = 0) -> None:
        with self.lock_state() as now:
            now.gpus[card].pages[0], now.gpus[card].pages[1] = single_bit, double_bit

    # --- processes ------------------------------------------------------------------------------------------

    def start_process(
        self,
        card: int,
        pid: int,
        *,
        memory_mib: int = 0,
        util: int = 0,
        memory_util: int = 0,
        instance_id: int | None = None,
        kind: Kind = Kind.COMPUTE,
    ) -> None:
        """Run a process on a GPU or MIG instance, or change its usage; `util` in percent."""
        with self.lock_state() as now:
            slots = list(now.gpus[card].processes)
            mine = [
                slot for slot in slots if slot.used and slot.pid == pid and slot.gpu_instance == _instance(instance_id)
            ]
            slot = next(iter([*mine, *(slot for slot in slots if not slot.used)]), None)
            if slot is None:
                raise Permanent(f"GPU {card} has {state.MAX_PROCESSES} processes, the maximum of the simulation")
            slot.pid, slot.kind, slot.memory = pid, kind, memory_mib << 20
            slot.sm_util, slot.memory_util = util, memory_util
            slot.gpu_instance = _instance(instance_id)
            slot.compute_instance = _instance(None if instance_id is None else 0)
            slot.used = 1

    def stop_process(self, card: int, pid: int) -> None:
        with self.lock_state() as now:
            for slot in now.gpus[card].processes:
                if slot.used and slot.pid == pid:
                    slot.used = 0

    # --- injected faults ------------------------------------------------------------------------------------

    def fail(self, function: str, code: Code, *, card: int | None = None, times: int | None = None) -> None:
        """Make calls of a function (or of all functions if empty) return an error."""
        self._add_fault(function, card, times, code=code)

    def delay_calls(self, function: str, seconds: float, *, card: int | None = None, times: int | None = None) -> None:
        """Make calls of a function slow."""
        self._add_fault(function, card, times, delay_ms=round(seconds * 1000))

    def kill(self, function: str, *, after: bool = False, skip: int = 0) -> None:
        """Kill the process that calls the function with SIGKILL: before the call, or after it and before its return.

        The first `skip` calls succeed. Only for processes other than the caller of this method.
        """
        self._add_fault(function, None, 1, code=_DIE_AFTER if after else _DIE_BEFORE, skip=skip)

    def forget(self, *functions: str) -> None:
        """Hide functions, as in an older driver."""
        for function in functions:
            self.fail(function, Code.FUNCTION_NOT_FOUND)

    def clear_faults(self) -> None:
        """Clear all slow and failing calls."""
        with self.lock_state() as now:
            now.faulty = 0
            for fault in now.faults:
                fault.used = 0

    def _add_fault(self, function: str, card: int | None, times: int | None, **effect: int) -> None:
        with self.lock_state() as now:
            slot = next((fault for fault in now.faults if not fault.used), None)
            if slot is None:
                raise Permanent(f"{state.MAX_FAULTS} faults at once, the maximum of the simulation")
            slot.function, slot.gpu = function.encode(), -1 if card is None else card
            slot.remaining = _FOR_EVER if times is None else times
            slot.code, slot.delay_ms = effect.get("code", 0), effect.get("delay_ms", 0)
            slot.skip = effect.get("skip", 0)
            slot.used = now.faulty = 1

    # --- queries --------------------------------------------------------------------------------------------

    def list_instances(self, card: int) -> tuple[Cut, ...]:
        """Return the MIG instances of a GPU, by start."""
        with self.lock_state() as now:
            found = [
                Cut(
                    instance.id,
                    now.profiles[instance.profile].name.decode(),
                    instance.start,
                    tuple(compute.uuid.decode() for compute in instance.compute if compute.used),
                )
                for instance in now.gpus[card].instances
                if instance.used
            ]
        return tuple(sorted(found, key=lambda cut: cut.start))


def _instance(instance_id: int | None) -> int:
    return state.NO_INSTANCE if instance_id is None else instance_id


def _declare_control(library: Path) -> Any:
    """Declare the control functions of the library, which NVML does not have."""
    control = ctypes.CDLL(str(library))
    said = (control.kgweStateSize(), *(control.kgweOffset(i) for i in range(len(state.list_offsets()))))
    if said != (ctypes.sizeof(state.State), *state.list_offsets()):
        raise InvariantBroken(f"state.py and c/state.h differ: {said} is not {state.list_offsets()}")
    return control


def _is_of(built: Path, folder: Path) -> bool:
    library = folder / build.LIBRARY
    return library.exists() and filecmp.cmp(built / build.LIBRARY, library, shallow=False)


def _assemble(folder: Path, built: Path, node: FleetNode) -> None:
    for name in (build.LIBRARY, build.SMI):
        # Do not overwrite a library that a process has loaded.
        (folder / name).unlink(missing_ok=True)
        shutil.copy2(built / name, folder / name)
    shutil.rmtree(folder / SYSFS_FOLDER, ignore_errors=True)
    sysfs_tree.write(folder / SYSFS_FOLDER, node)
    _write_state(folder, node)


def _write_state(folder: Path, node: FleetNode) -> None:
    """Write the complete file before it gets its name: a process that finds the file can use it."""
    control = _declare_control(folder / build.LIBRARY)
    made = state.State()
    made.version, made.size = state.VERSION, ctypes.sizeof(state.State)
    blueprint.draw(made, node)
    control.kgweMakeLock(ctypes.byref(made))
    made.magic = state.MAGIC
    partial = folder / f".{STATE_FILE}.partial"
    partial.write_bytes(bytes(made))
    partial.replace(folder / STATE_FILE)
