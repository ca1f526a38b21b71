"""The MPS daemons of a machine: one control daemon per GPU or MIG instance that is shared by MPS.

The desired daemons are written to a file before any change, and daemons have a mark that identifies them. So an agent
that was killed finds its daemons, starts none twice and leaves none behind.

    desired, none runs         started, with back-off after failures
    desired, one runs          adopted; its limits are set again (they apply to the next server)
    desired, silent            checked for three rounds, then stopped and restarted
    not desired, no clients    stopped, its directory removed
    not desired, clients       kept until the clients have ended (draining), unless forced

MPS does not limit the number of clients: the allocator of the unit enforces `max_clients`; here it is only monitored.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.hardware.linux import marked_processes
from kgwe.hardware.mps import control as mps_control
from kgwe.hardware.mps.control import MARK, MpsControl, MpsDirectories
from kgwe.hardware.mps.desired import DesiredDaemon, DesiredFile
from kgwe.model.units import backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

    from kgwe.hardware.linux.marked_processes import MarkedProcess

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S: Final = 1.0
# Seconds after which a running daemon counts as healthy, and its failures are forgotten.
_WELL_AFTER_S: Final = 60.0
_SILENT_ROUNDS: Final = 3
# A process that a killed agent was just starting keeps the lock until it runs its program.
_LOCK_TRIES: Final = 20
_LOCK_PAUSE_S: Final = 0.05
# A command starts a process; a check of the pid costs nothing.
_ASK_EVERY_S: Final = 30.0


class State(enum.StrEnum):
    RUNNING = "Running"
    FAILED = "Failed"
    DRAINING = "Draining"


@dataclass(frozen=True, slots=True)
class Status:
    """The status of one daemon."""

    uuid: str
    state: State
    pipe_directory: str
    log_directory: str
    pid: int | None = None
    servers: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    """Pids in the daemon's pid namespace."""
    is_crowded: bool = False
    """True if there are more clients than allowed."""
    restarts: int = 0
    problem: str = ""


@dataclass(slots=True)
class _Unit:
    control: MpsControl
    daemon: MarkedProcess | None = None
    since_s: float = 0.0
    failures: int = 0
    restarts: int = 0
    not_before_s: float = 0.0
    silent: int = 0
    asked_s: float = -math.inf
    problem: str = ""
    limits: tuple[int, int | None] | None = None
    servers: dict[int, tuple[int, ...]] = field(default_factory=dict)


class MpsDaemons:
    """All daemons under one root directory. One process at a time has it open; each call leaves a consistent state."""

    def __init__(
        self,
        root: Path,
        *,
        binary: str = mps_control.BINARY,
        deadline_s: float = 10.0,
        ask_every_s: float = _ASK_EVERY_S,
        set_exclusive: Callable[[str, bool], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`set_exclusive(uuid, on)` sets compute mode exclusive-process, and resets it."""
        self._root = root
        self._binary = binary
        self._deadline_s = deadline_s
        self._ask_every_s = ask_every_s
        self._set_exclusive = set_exclusive
        self._clock = clock
        self._wanted: dict[str, DesiredDaemon] = {}
        self._units: dict[str, _Unit] = {}
        self._busy = asyncio.Lock()
        self._wishes = DesiredFile(root)

    # --- opening ----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the root, and check the daemons of an earlier agent; raise Conflict if another agent has it open."""
        async with self._busy:
            self._wanted = await self._open_file()
            await self._check_all()

    async def _open_file(self) -> dict[str, DesiredDaemon]:
        for _ in range(_LOCK_TRIES):
            with contextlib.suppress(errors.Conflict):
                return self._wishes.open()
            await asyncio.sleep(_LOCK_PAUSE_S)
        return self._wishes.open()

    async def close(self) -> None:
        """Close the root. Daemons and their clients keep running."""
        async with self._busy:
            self._wishes.close()

    # --- orders -----------------------------------------------------------------------------------------

    async def apply(self, wanted: Sequence[DesiredDaemon]) -> None:
        """Set the desired daemons. Idempotent; `check_daemons` retries failures."""
        async with self._busy:
            await self._apply({wish.uuid: wish for wish in wanted})

    async def start_daemon(self, wish: DesiredDaemon) -> Status:
        """Add a daemon, or change its limits."""
        async with self._busy:
            await self._apply({**self._wanted, wish.uuid: wish})
            return await self._read_status(wish.uuid)

    async def stop_daemon(self, uuid: str, *, force: bool = False) -> Status | None:
        """Remove a daemon; return None once it has ended. With `force` do not wait for its clients."""
        async with self._busy:
            await self._apply({name: wish for name, wish in self._wanted.items() if name != uuid})
            if force and uuid in self._units:
                await self._stop(uuid, self._units[uuid], force=True)
            return await self._read_status(uuid) if uuid in self._units else None

    async def _apply(self, wanted: dict[str, DesiredDaemon]) -> None:
        self._check_open()
        for uuid in wanted:
            mps_control.check_unit(self._root, uuid)
        self._wishes.write(wanted)
        self._wanted = wanted
        await self._check_all()

    async def check_daemons(self) -> None:
        """Check all daemons once; call it every few seconds."""
        async with self._busy:
            self._check_open()
            await self._check_unit()

    def _check_open(self) -> None:
        if not self._wishes.is_open:
            raise errors.Permanent("the MPS daemons are not open")

    # --- checks -----------------------------------------------------------------------------------------

    async def _check_all(self) -> None:
        """Check all units, including orphaned daemons."""
        for uuid in self._find_orphans():
            self._unit(uuid)
        await self._check_unit()

    async def _check_unit(self) -> None:
        for uuid, unit in list(self._units.items()):
            if uuid not in self._wanted:
                await self._catch_errors(unit, self._stop(uuid, unit))
        for uuid, wish in self._wanted.items():
            unit = self._unit(uuid)
            await self._catch_errors(unit, self._ensure_running(wish, unit))

    async def _catch_errors(self, unit: _Unit, step: Awaitable[None]) -> None:
        """Handle errors of one daemon, so that the others are still checked."""
        try:
            await step
        except errors.Transient as exc:
            unit.problem = str(exc)

    def _unit(self, uuid: str) -> _Unit:
        if uuid not in self._units:
            control = MpsControl(MpsDirectories(self._root, uuid), self._binary, deadline_s=self._deadline_s)
            self._units[uuid] = _Unit(control)
        return self._units[uuid]

    def _find_orphans(self) -> Iterable[str]:
        """Return units under our root that have processes or files and are not desired."""
        prefix = mps_control.mark_of(self._root)
        found = {each.mark.removeprefix(prefix) for each in marked_processes.find_processes(MARK, prefix)}
        found |= {mps_control.unit_of(entry.name) for entry in self._root.iterdir() if entry.is_dir()}
        return sorted(uuid for uuid in found if uuid not in self._wanted)

    async def _ensure_running(self, wish: DesiredDaemon, unit: _Unit) -> None:
        if unit.daemon is not None and not marked_processes.is_alive(unit.daemon, MARK):
            self._record_failure(unit, "the MPS daemon exited unexpectedly")
        if unit.daemon is None and not await self._start_or_adopt(wish, unit):
            return
        if not await self._is_responding(unit):
            return
        limits = (wish.thread_percentage, wish.memory_mib)
        if unit.limits != limits:
            await unit.control.set_limits(*limits)
            unit.limits = limits
        unit.problem = ""
        if self._clock() - unit.since_s > _WELL_AFTER_S:
            unit.failures = 0

    async def _start_or_adopt(self, wish: DesiredDaemon, unit: _Unit) -> bool:
        """Adopt the running daemon, or start one; return False if neither is possible now."""
        if self._clock() < unit.not_before_s:
            return False
        daemon = await unit.control.adopt()
        if daemon is None:
            await unit.control.kill()
            if wish.is_exclusive:
                await self._set_compute_mode(unit.control.places, on=True)
            try:
                daemon = await unit.control.start()
            except errors.Transient as exc:
                self._record_failure(unit, str(exc))
                return False
            log.info("mps_started", uuid=wish.uuid, pid=daemon.pid)
            unit.asked_s = self._clock()  # it cannot have clients yet
        else:
            log.info("mps_adopted", uuid=wish.uuid, pid=daemon.pid)
            unit.asked_s = -math.inf
        unit.daemon, unit.since_s, unit.silent, unit.limits = daemon, self._clock(), 0, None
        return True

    async def _is_responding(self, unit: _Unit) -> bool:
        """Return whether the daemon responds; a daemon that stays silent is stopped, and restarted by a later
        round."""
        if not unit.silent and self._clock() < unit.asked_s + self._ask_every_s:
            return True
        unit.asked_s = self._clock()
        with contextlib.suppress(errors.Transient):
            unit.servers = await unit.control.list_clients()
            unit.silent = 0
            return True
        unit.silent += 1
        unit.problem = f"the MPS daemon does not respond (round {unit.silent})"
        if unit.silent >= _SILENT_ROUNDS:
            await unit.control.kill()
            self._record_failure(unit, "the MPS daemon did not respond and was stopped")
        return False

    def _record_failure(self, unit: _Unit, problem: str) -> None:
        if unit.daemon is not None:
            unit.restarts += 1
            if self._clock() - unit.since_s > _WELL_AFTER_S:
                unit.failures = 0
        pause_s = backoff.delay_s(_FIRST_PAUSE_S, unit.failures, random.random())  # noqa: S311 - spreads retries
        unit.daemon, unit.limits, unit.servers = None, None, {}
        unit.failures += 1
        unit.not_before_s = self._clock() + pause_s
        unit.problem = problem
        log.warning("mps_failed", uuid=unit.control.places.uuid, problem=problem, retry_s=round(pause_s, 1))

    async def _stop(self, uuid: str, unit: _Unit, *, force: bool = False) -> None:
        if unit.control.list_processes():
            if not force and (waits_for := await self._find_users(unit)):
                unit.problem = waits_for
                return
            if not await unit.control.quit():
                await unit.control.kill()
            log.info("mps_ended", uuid=uuid, forced=force)
        if unit.control.places.exclusive.exists():
            await self._set_compute_mode(unit.control.places, on=False)
        unit.control.remove_files()
        del self._units[uuid]

    async def _find_users(self, unit: _Unit) -> str:
        """Return why the daemon must not be stopped yet; empty if it may."""
        try:
            unit.servers = await unit.control.list_clients()
        except errors.Transient as exc:
            # A daemon that does not respond serves no client.
            unit.silent += 1
            return str(exc) if unit.silent < _SILENT_ROUNDS else ""
        return "waiting for its clients to end" if any(unit.servers.values()) else ""

    async def _set_compute_mode(self, places: MpsDirectories, *, on: bool) -> None:
        # The compute mode belongs to a GPU; a MIG instance has none.
        if self._set_exclusive is None or not places.uuid.startswith("GPU-"):
            return
        if on:
            # Recorded first, so that it is reset even if we are killed in between.
            places.directory.mkdir(parents=True, exist_ok=True, mode=0o755)
            places.exclusive.touch()
        await self._set_exclusive(places.uuid, on)

    # --- status -----------------------------------------------------------------------------------------

    async def read_status(self) -> tuple[Status, ...]:
        """Return all running and desired daemons with their current clients."""
        async with self._busy:
            return tuple([await self._read_status(uuid) for uuid in sorted(self._units)])

    async def status_of(self, uuid: str) -> Status:
        """Return one status; raise NotFound if there is no such daemon and none is desired."""
        async with self._busy:
            if uuid not in self._units:
                raise errors.NotFound(f"no MPS daemon for {uuid}")
            return await self._read_status(uuid)

    async def _read_status(self, uuid: str) -> Status:
        unit = self._units[uuid]
        problem = ""
        if unit.daemon is not None or uuid not in self._wanted:
            try:
                unit.servers = await unit.control.list_clients()
            except errors.Transient as exc:
                unit.servers, problem = {}, str(exc)
        return self._remember_status(uuid, problem)

    def last_status(self) -> tuple[Status, ...]:
        """Return the status with clients as last read, without any call."""
        return tuple(self._remember_status(uuid) for uuid in sorted(self._units))

    def _remember_status(self, uuid: str, problem: str = "") -> Status:
        unit, wish = self._units[uuid], self._wanted.get(uuid)
        clients = tuple(pid for pids in unit.servers.values() for pid in pids)
        running = State.RUNNING if unit.daemon is not None else State.FAILED
        return Status(
            uuid=uuid,
            state=State.DRAINING if wish is None else running,
            pipe_directory=str(unit.control.places.pipe),
            log_directory=str(unit.control.places.log),
            pid=unit.daemon.pid if unit.daemon else None,
            servers=tuple(unit.servers),
            clients=clients,
            is_crowded=wish is not None and len(clients) > wish.max_clients,
            restarts=unit.restarts,
            problem=unit.problem or problem,
        )

    def map_servers(self) -> dict[int, tuple[int, ...]]:
        """Return pid of a server -> pids of its clients, of all units, as last read."""
        return {server: pids for unit in self._units.values() for server, pids in unit.servers.items()}

    @property
    def wanted(self) -> tuple[DesiredDaemon, ...]:
        return tuple(self._wanted.values())
