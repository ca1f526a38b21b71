"""One MPS control daemon, managed with NVIDIA's `nvidia-cuda-mps-control`.

    nvidia-cuda-mps-control -d            starts a daemon in the background and returns when it listens
    echo COMMAND | nvidia-cuda-mps-control    sends a command to the daemon of CUDA_MPS_PIPE_DIRECTORY

A killed daemon leaves its pid, socket and pipes in the pipe directory; a new one needs a clean directory. The daemon
starts a server for the first client; limits apply to the next server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.hardware.linux import marked_processes

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.hardware.linux.marked_processes import MarkedProcess

BINARY: Final = "nvidia-cuda-mps-control"
#: Environment variable of our daemons and their servers: the unit, and the root directory.
MARK: Final = "KGWE_MPS_DAEMON"
_PID_FILE: Final = "nvidia-cuda-mps-control.pid"
_KEPT_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "HOME", "LANG", "NVIDIA_DRIVER_ROOT")
_MAX_ANSWER: Final = 64 * 1024
# Seconds between two polls of a daemon that is not our child.
_POLL_S: Final = 0.02
# The maximum path length of a unix socket; the longest name of the daemon is `control_privileged`.
_MAX_SOCKET_PATH: Final = 107
_LONGEST_SOCKET: Final = "control_privileged"
_UNIT: Final = re.compile(r"(?:GPU|MIG)-[A-Za-z0-9-]+(?:/\d+/\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class MpsDirectories:
    """The directories of a unit's daemon."""

    root: Path
    uuid: str

    @property
    def directory(self) -> Path:
        return self.root / self.uuid.replace("/", "_")  # old drivers: MIG-GPU-…/1/0

    @property
    def pipe(self) -> Path:
        return self.directory / "pipe"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def exclusive(self) -> Path:
        """Return a file that exists while we have set the GPU to compute mode exclusive-process."""
        return self.directory / "exclusive"

    @property
    def mark(self) -> str:
        return mark_of(self.root, self.uuid)


def unit_of(directory: str) -> str:
    """Return the unit of a directory under the root."""
    return directory.replace("_", "/")


def mark_of(root: Path, uuid: str = "") -> str:
    return f"{root}#{uuid}"


def check_unit(root: Path, uuid: str) -> None:
    """Raise Permanent if a daemon for the unit cannot run under the root."""
    if not _UNIT.fullmatch(uuid):
        raise errors.Permanent(f"{uuid[:80]!r} is not the UUID of a GPU or MIG instance")
    longest = MpsDirectories(root, uuid).pipe / _LONGEST_SOCKET
    if len(os.fsencode(longest)) > _MAX_SOCKET_PATH:
        raise errors.Permanent(f"{longest} is too long for a socket; choose a shorter mpsDirectory")


class MpsControl:
    """The daemon of one unit. Each call ends within the deadline."""

    def __init__(self, places: MpsDirectories, binary: str = BINARY, *, deadline_s: float = 10.0) -> None:
        self.places = places
        self._binary = binary
        self._deadline_s = deadline_s

    # --- life -------------------------------------------------------------------------------------------

    async def start(self) -> MarkedProcess:
        """Start a daemon on a clean directory; raise Transient with the end of its log if it does not start.

        None of our processes may run there. A daemon that starts only after the deadline is stopped.
        """
        self._remove_files()
        with (self.places.log / "start.log").open("wb") as log:
            # Files instead of pipes: the daemon inherits them, and a pipe would stay open as long as it runs.
            process = await self._spawn("-d", stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, ours=True)
            try:
                async with asyncio.timeout(self._deadline_s):
                    code = await process.wait()
                    daemon = await self._await_daemon() if code == 0 else None
            except TimeoutError as exc:
                await self.kill()
                raise errors.Transient(f"the MPS daemon did not start within {self._deadline_s:g} s") from exc
            finally:
                if process.returncode is None:
                    await _reap(process)
        if daemon is None:
            raise errors.Transient(f"the MPS daemon did not start (exit code {code}): {self._read_log_tail()}")
        return daemon

    async def _await_daemon(self) -> MarkedProcess:
        while (found := self.find_daemon()) is None or not await self.is_responding():  # noqa: ASYNC110 - nothing notifies us
            await asyncio.sleep(_POLL_S)
        return found

    async def adopt(self) -> MarkedProcess | None:
        """Return the running daemon once it responds; None if there is none, or it does not respond in time."""
        if not self.list_processes():
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._deadline_s):
                return await self._await_daemon()
        return None

    def find_daemon(self) -> MarkedProcess | None:
        """Return the daemon by its pid file, if that process is ours."""
        try:
            pid = int((self.places.pipe / _PID_FILE).read_text().strip())
        except (OSError, ValueError):
            return None
        found = marked_processes.read_process(pid, MARK)
        return found if found is not None and found.mark == self.places.mark else None

    def list_processes(self) -> list[MarkedProcess]:
        """Return all our processes of this unit: daemon, servers, a starting daemon."""
        return [
            each for each in marked_processes.find_processes(MARK, self.places.mark) if each.mark == self.places.mark
        ]

    async def quit(self) -> bool:
        """Ask the daemon to quit; return True once no process of the unit runs."""
        known = self.list_processes()
        with contextlib.suppress(errors.Transient):
            await self.send_command("quit")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._deadline_s):
                while any(marked_processes.is_alive(each, MARK) for each in known):  # noqa: ASYNC110 - nothing notifies us
                    await asyncio.sleep(_POLL_S)
        return not self.list_processes()

    async def kill(self) -> None:
        """Kill all processes of the unit."""
        await asyncio.to_thread(marked_processes.terminate, self.list_processes(), MARK, grace_s=self._deadline_s / 2)

    def remove_files(self) -> None:
        """Remove the unit's directory."""
        shutil.rmtree(self.places.directory, ignore_errors=True)

    def _remove_files(self) -> None:
        """Remove files of a killed daemon, which would prevent the next start."""
        shutil.rmtree(self.places.pipe, ignore_errors=True)
        for directory in (self.places.pipe, self.places.log):
            directory.mkdir(parents=True, exist_ok=True, mode=0o755)

    def _read_log_tail(self) -> str:
        """Return the end of the daemon's log."""
        for name in ("start.log", "control.log"):
            with contextlib.suppress(OSError):
                text = (self.places.log / name).read_bytes()[-400:].decode(errors="replace").strip()
                if text:
                    return text.splitlines()[-1]
        return "the log is empty"

    # --- questions --------------------------------------------------------------------------------------

    async def is_responding(self) -> bool:
        try:
            await self.thread_percentage()
        except errors.Transient:
            return False
        return True

    async def thread_percentage(self) -> float:
        """Return the default percentage of the next server."""
        return _parse_percentage(await self.send_command("get_default_active_thread_percentage"))

    async def set_limits(self, thread_percentage: int, memory_mib: int | None) -> None:
        """Set the limits of the next server. Device 0 is the only one the daemon sees."""
        commands = [f"set_default_active_thread_percentage {thread_percentage}"]
        if memory_mib is not None:
            commands.append(f"set_default_device_pinned_mem_limit 0 {memory_mib}M")
        # One process for all commands; the last line is the response to the last command.
        told = (await self.send_command(*commands, "get_default_active_thread_percentage")).split()
        if not told or _parse_percentage(told[-1]) != thread_percentage:
            raise errors.Transient("the MPS daemon did not accept the thread percentage")

    async def list_clients(self) -> dict[int, tuple[int, ...]]:
        """Return pid of a server -> pids of its clients, in the pid namespace of the daemon."""
        servers = _parse_numbers(await self.send_command("get_server_list"))
        return {server: _parse_numbers(await self.send_command(f"get_client_list {server}")) for server in servers}

    async def send_command(self, *commands: str) -> str:
        """Return the daemon's response; raise Transient if there is no daemon or it does not respond."""
        command = "\n".join(commands)
        process = await self._spawn(
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(self._deadline_s):
                out, _ = await process.communicate(f"{command}\n".encode())
        except TimeoutError as exc:
            raise errors.Transient(
                f"the MPS daemon did not respond to {command!r} within {self._deadline_s:g} s"
            ) from exc
        finally:
            if process.returncode is None:
                await _reap(process)
        if process.returncode != 0:
            raise errors.Transient(f"cannot send {command!r} to the MPS daemon (exit code {process.returncode})")
        return out[:_MAX_ANSWER].decode(errors="replace")

    async def _spawn(self, *arguments: str, ours: bool = False, **streams: object) -> asyncio.subprocess.Process:
        places = self.places
        environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        environment |= {"CUDA_MPS_PIPE_DIRECTORY": str(places.pipe), "CUDA_MPS_LOG_DIRECTORY": str(places.log)}
        if ours:
            # By UUID, so device 0 of the server is this one.
            environment |= {"CUDA_VISIBLE_DEVICES": places.uuid, MARK: places.mark}
        try:
            return await asyncio.create_subprocess_exec(
                self._binary,
                *arguments,
                env=environment,
                start_new_session=True,
                **streams,  # type: ignore[arg-type] # the three streams, as above
            )
        except OSError as exc:
            raise errors.Transient(f"cannot run {self._binary}: {exc.strerror}") from exc


def _parse_percentage(text: str) -> float:
    try:
        return float(text.strip())
    except ValueError as exc:
        raise errors.Transient(f"the MPS daemon returned {text.strip()[:80]!r} instead of a percentage") from exc


def _parse_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(line) for line in text.split() if line.isdecimal())


async def _reap(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
