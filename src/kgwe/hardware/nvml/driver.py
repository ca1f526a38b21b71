"""The GPUs of this machine through NVIDIA's driver.

There are two threads: one for calls, one that waits for events. `worker` describes hanging calls, and
`library.Absence` the reasons for a missing driver. The driver is tried again at each call, so one that appears is
found.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kgwe import errors
from kgwe.hardware.nvml.events import EventReader
from kgwe.hardware.nvml.library import Absence, CardLost, Detached, Library, Unavailable
from kgwe.hardware.nvml.machine import MachineReader, Memory
from kgwe.hardware.nvml.mig import MigControl
from kgwe.hardware.nvml.reading import InstrumentsReader
from kgwe.hardware.nvml.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kgwe.model.gpu.driver_data import Event, Instance, Machine, Reading

__all__ = ["Absence", "CardLost", "Deadlines", "NvmlDriver", "Unavailable"]

T = TypeVar("T")

LIBRARY_VARIABLE: Final = "KGWE_NVML_LIBRARY"
SMI_VARIABLE: Final = "KGWE_NVIDIA_SMI"
SYSFS_VARIABLE: Final = "KGWE_SYSFS"

# Seconds after which the listener releases the driver, so that a reset or close need not wait for an event.
_LISTEN_S: Final = 0.5
_PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Deadlines of driver calls, in seconds. The first read of eight GPUs takes a second or two."""

    read: float = 15.0
    cut: float = 30.0
    mode: float = 90.0
    """A change of MIG mode may reset the GPU."""
    reset: float = 120.0


class NvmlDriver:
    """A `GpuDriver`."""

    def __init__(
        self,
        *,
        library: Path | str | None = None,
        smi: Path | str = "nvidia-smi",
        sysfs: Path = Path("/sys"),
        deadlines: Deadlines | None = None,
    ) -> None:
        self._library_path = library
        self._smi = str(smi)
        self._sysfs = sysfs
        self._deadlines = deadlines or Deadlines()
        self._taken: deque[Event] = deque()
        self._memory = Memory()
        self._pid = 0
        self._is_closed = False
        self._begin_call()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, deadlines: Deadlines | None = None) -> NvmlDriver:
        """Return the driver that KGWE_NVML_LIBRARY names, or the machine's own."""
        return cls(
            library=environment.get(LIBRARY_VARIABLE) or None,
            smi=environment.get(SMI_VARIABLE) or "nvidia-smi",
            sysfs=Path(environment.get(SYSFS_VARIABLE) or "/sys"),
            deadlines=deadlines,
        )

    @property
    def is_hung(self) -> bool:
        """Return whether a call has exceeded its deadline and not returned yet."""
        return self._worker.is_hung

    # --- GpuDriver ------------------------------------------------------------------------------------------

    async def machine(self) -> Machine:
        return await self._run("reading the GPUs", lambda s: s.surveyor.read(), self._deadlines.read)

    async def readings(self) -> Sequence[Reading]:
        return await self._run("reading the values of the GPUs", lambda s: s.reader.read(), self._deadlines.read)

    async def events(self, timeout_s: float) -> Sequence[Event]:
        self._check()
        if not self._taken:
            await self._listener.run(
                "waiting for events", lambda: self._listen(timeout_s), timeout_s + self._deadlines.read
            )
        return [self._taken.popleft() for _ in range(len(self._taken))]

    async def set_mig_mode(self, uuid: str, *, enabled: bool) -> bool:
        return await self._run(
            f"setting MIG mode of {uuid}",
            lambda s: s.mig.set_mode(s.find_handle(uuid), enabled=enabled),
            self._deadlines.mode,
        )

    async def create_instance(self, uuid: str, profile: str, start: int) -> Instance:
        return await self._run(
            f"creating {profile}@{start} on {uuid}",
            lambda s: s.mig.create(s.find_handle(uuid), profile, start),
            self._deadlines.cut,
        )

    async def destroy_instance(self, uuid: str, instance_id: int) -> None:
        await self._run(
            f"removing instance {instance_id} of {uuid}",
            lambda s: s.mig.destroy(s.find_handle(uuid), instance_id),
            self._deadlines.cut,
        )

    async def reset(self, uuid: str) -> None:
        self._check()
        await self._worker.run(f"resetting {uuid}", lambda: self._reset(uuid), self._deadlines.reset)

    async def close(self) -> None:
        """Close the driver. Hanging threads end with the process."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._session is not None and not self._worker.is_hung and self._pid == os.getpid():
            with contextlib.suppress(errors.Transient):
                await self._worker.run("closing", self._close_session, self._deadlines.read)
        self._worker.close()
        self._listener.close()

    # --- threads --------------------------------------------------------------------------------------------

    def _begin_call(self) -> None:
        """Create what belongs to one process: neither threads nor NVML survive a fork."""
        self._pid = os.getpid()
        self._worker, self._listener = Worker("nvml"), Worker("nvml-events")
        self._session: _Session | None = None
        self._opening = threading.Lock()
        self._gate = threading.Lock()
        """Held by the listener while it is inside the driver."""
        self._is_quiet = threading.Event()
        """Set while the listener must stay out of the driver."""

    def _check(self) -> None:
        if self._is_closed:
            raise errors.Permanent("the GPU driver has been closed")
        if self._pid != os.getpid():
            self._begin_call()

    async def _run(self, what: str, work: Callable[[_Session], T], deadline_s: float) -> T:
        self._check()

        def on_thread() -> T:
            try:
                return work(self._open_session())
            except errors.KgweError as exc:
                if isinstance(exc, Detached):
                    self._session = None
                if not isinstance(exc, Unavailable):
                    exc.args = (f"{what}: {exc}",)
                raise

        return await self._worker.run(what, on_thread, deadline_s)

    def _open_session(self) -> _Session:
        with self._opening:
            if self._session is None:
                self._session = _Session(self._library_path, self._sysfs, self._memory, self._taken)
            return self._session

    def _close_session(self) -> None:
        self._is_quiet.set()
        with self._gate:
            if self._session is not None:
                self._session.close()

    def _listen(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        self._open_session()
        while not self._taken and not self._is_closed:
            begun = time.monotonic()
            turn = min(max(end - begun, 0.0), _LISTEN_S)
            self._listen_once(turn)
            if not turn:
                return
            # A driver without a wait returns at once: spend the rest of the time here.
            rest = begun + turn - time.monotonic()
            if rest > 0 and not self._taken:
                time.sleep(min(rest, _PAUSE_S) if self._is_quiet.is_set() else rest)

    def _listen_once(self, timeout_s: float) -> None:
        if self._is_quiet.is_set():
            return
        with self._gate:
            if self._session is not None:
                self._session.tap.wait(round(timeout_s * 1000))

    # --- reset ----------------------------------------------------------------------------------------------

    def _reset(self, uuid: str) -> None:
        """Reset with nvidia-smi: NVML has no function for it. No process, including ours, may have the GPU open."""
        session = self._open_session()
        if not session.has_gpu(uuid):
            raise errors.NotFound(f"no GPU {uuid} on this machine")
        self._is_quiet.set()
        try:
            # Both locks: no call is running, and none reopens the driver before the reset is done.
            with self._opening, self._gate:
                session.close()
                self._session = None
                try:
                    _run_smi(self._smi, uuid, 0.9 * self._deadlines.reset)
                finally:
                    self._session = session.reopen()
        finally:
            self._is_quiet.clear()


class _Session:
    """An initialized NVML, and the data read through it."""

    def __init__(self, path: Path | str | None, sysfs: Path, memory: Memory, taken: deque[Event]) -> None:
        self._library = Library(path)
        self._taken = taken
        self.mig = MigControl(self._library)
        self._memory = memory
        self.surveyor = MachineReader(self._library, self.mig, sysfs, memory)
        self.reader = InstrumentsReader(self._library, self.mig, memory)
        self._open()

    def _open(self) -> None:
        self._library.initialise()
        try:
            self.tap = EventReader(self._library, self._taken)
            self.tap.open()
        except errors.KgweError:
            self._library.shut_down()
            raise

    def find_handle(self, uuid: str) -> Any:
        """Return the handle of a GPU."""
        return self._library.call("nvmlDeviceGetHandleByUUID", uuid.encode())

    def has_gpu(self, uuid: str) -> bool:
        if any(device.uuid == uuid for device in self._memory.devices.values()):
            return True
        return self._library.call_if_supported("nvmlDeviceGetHandleByUUID", uuid.encode()) is not None

    def close(self) -> None:
        self.tap.close()
        self._library.shut_down()

    def reopen(self) -> _Session:
        self._open()
        return self


def _run_smi(smi: str, uuid: str, timeout_s: float) -> None:
    try:
        done = subprocess.run(
            [smi, "--gpu-reset", "-i", uuid],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as exc:
        raise errors.Permanent(f"cannot run nvidia-smi to reset {uuid}: {exc}") from exc
    except subprocess.TimeoutExpired as exc:
        raise errors.Transient(f"nvidia-smi did not reset {uuid} within {timeout_s:g} s") from exc
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())
        raise _classify_refusal(said)(f"{uuid} was not reset: {said}")


def _classify_refusal(said: str) -> type[errors.KgweError]:
    """Return the kind of nvidia-smi's refusal, which has no codes."""
    words = said.lower()
    if "in use" in words:
        return errors.Conflict
    return errors.Permanent if "not supported" in words or "permission" in words else errors.Transient
