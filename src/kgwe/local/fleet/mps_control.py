"""A simulated `nvidia-cuda-mps-control` with the same commands, files and behavior, without a GPU.

    nvidia-cuda-mps-control -d            daemon in the background; returns when it listens
    nvidia-cuda-mps-control -f            in the foreground
    echo COMMAND | nvidia-cuda-mps-control    one command per line

The daemon uses CUDA_MPS_PIPE_DIRECTORY and logs to CUDA_MPS_LOG_DIRECTORY. It starts a server process for the first
client and refuses a second daemon in the same directory. A killed daemon leaves its files, and its socket prevents the
next start. A *client* is a connection that sends `client PID`.

`install` writes an executable with the real name into a directory. A file `NAME.fault` next to it injects a fault:
`start` (does not start), `mute` (starts and never responds), `slow` (takes a second to start). Each command starts the
program, so only modules that load quickly are imported: neither `pathlib` and `typing` nor `socket` and `signal`.
"""

from __future__ import annotations

import _socket
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from pathlib import Path
    from typing import NoReturn

NAME = "nvidia-cuda-mps-control"
_FAULT = "KGWE_MPS_FAULT"
_SLOW_S = 1.0
_TIMEOUT_S = 30.0
_MAX_LINE = 4096
_SIGKILL = 9


def install(directory: Path) -> Path:
    """Write an executable with the real name and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / NAME
    # As a module, so that its compiled form is used.
    folder, _, file = __file__.rpartition("/")
    module = file.removesuffix(".py")
    run = f"import sys; sys.path.insert(0, {folder!r}); import {module}; sys.exit({module}.main(sys.argv[1:]))"
    lines = (
        "#!/bin/sh",
        f'{_FAULT}=""',
        f'[ -f "$0.fault" ] && read -r {_FAULT} < "$0.fault"',
        f"export {_FAULT}",
        f'exec {sys.executable} -S -E -c "{run}" "$@"',
    )
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return path


def inject_fault(binary: Path, fault: str) -> None:
    """Inject `start`, `mute` or `slow`, or clear the fault; affects daemons started afterwards."""
    binary.with_name(f"{binary.name}.fault").write_text(fault)


def connect(pipe_directory: Path, pid: int) -> socket.socket:
    """Connect as a client until the socket is closed."""
    import socket  # noqa: PLC0415 -- loads slowly, see above

    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(_TIMEOUT_S)
    client.connect(str(pipe_directory / "control"))
    client.sendall(f"client {pid}\n".encode())
    if client.recv(16) != b"ok\n":
        client.close()
        raise ConnectionRefusedError("the daemon did not accept the client")
    return client


# --- the daemon -----------------------------------------------------------------------------------------


class _Daemon:
    def __init__(self, pipe: str, log: str) -> None:
        self._pipe, self._log = pipe, log
        self._threads = 100.0
        self._memory: dict[str, str] = {}
        self._server: int | None = None
        self._clients: dict[_socket.socket, int] = {}
        self._sessions: dict[int, _socket.socket] = {}
        self._listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)

    def listen(self) -> None:
        self._listener.bind(f"{self._pipe}/control")
        self._listener.listen(64)
        with open(f"{self._pipe}/{NAME}.pid", "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib loads slowly
            file.write(f"{os.getpid()}\n")
        self._write_log(f"Starting control daemon using socket {self._pipe}/control")

    def serve(self) -> NoReturn:
        while True:
            for number in select.select([self._listener.fileno(), *self._sessions], [], [])[0]:
                if number in self._sessions:
                    self._on_readable(self._sessions[number])
                else:
                    accepted, _ = self._listener._accept()  # type: ignore[attr-defined] # noqa: SLF001 - `socket` uses it
                    self._sessions[accepted] = _socket.socket(fileno=accepted)

    def _on_readable(self, session: _socket.socket) -> None:
        try:
            heard = session.recv(_MAX_LINE).decode(errors="replace")
        except OSError:
            heard = ""
        if not heard or session in self._clients:
            self._forget(session)
            return
        if os.environ.get(_FAULT) == "mute":
            return
        for line in heard.splitlines():
            word, *rest = line.split() or [""]
            if word == "client":
                self._take(session, int(rest[0]))
                return
            _send(session, self._answer(word, rest).encode())
        self._forget(session)

    def _forget(self, session: _socket.socket) -> None:
        self._clients.pop(session, None)
        del self._sessions[session.fileno()]
        session.close()

    def _take(self, session: _socket.socket, pid: int) -> None:
        if self._server is None:
            self._server = self._start_server()
        self._clients[session] = pid
        self._write_log(f"NEW CLIENT {pid}")
        _send(session, b"ok\n")

    def _start_server(self) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._listener.close()
            # A server ends with its daemon.
            while os.getppid() == parent:
                time.sleep(0.05)
            os._exit(0)
        self._write_log(f"Starting new server {pid}")
        return pid

    def _answer(self, word: str, rest: list[str]) -> str:
        match word, rest:
            case "get_server_list", []:
                return f"{self._server}\n" if self._server else ""
            case "get_client_list", [server]:
                return "".join(f"{pid}\n" for pid in self._clients.values()) if server == str(self._server) else ""
            case "get_default_active_thread_percentage", []:
                return f"{self._threads}\n"
            case "set_default_active_thread_percentage", [share]:
                self._threads = float(share)
                return f"{self._threads}\n"
            case "set_default_device_pinned_mem_limit", [device, limit]:
                self._memory[device] = limit
                return ""
            case "get_default_device_pinned_mem_limit", [device]:
                return f"{self._memory.get(device, 'none')}\n"
            case "quit", _:
                self._quit()
        return "Unknown command\n"

    def _quit(self) -> NoReturn:
        if self._server is not None:
            os.kill(self._server, _SIGKILL)
            os.waitpid(self._server, 0)
        self._write_log("Exit")
        for name in ("control", f"{NAME}.pid"):
            if os.path.exists(path := f"{self._pipe}/{name}"):  # noqa: PTH110 - the same
                os.unlink(path)  # noqa: PTH108 - the same
        os._exit(0)

    def _write_log(self, text: str) -> None:
        with open(f"{self._log}/control.log", "a", encoding="utf-8") as file:  # noqa: PTH123 - pathlib loads slowly
            file.write(f"[Control {os.getpid():5}] {text}\n")


def _send(session: _socket.socket, text: bytes) -> None:
    try:
        session.sendall(text)
    except OSError:
        return  # it is gone


def _run_daemon(*, background: bool) -> int:  # noqa: RET503 - serving never returns
    pipe, log = (os.environ[f"CUDA_MPS_{name}_DIRECTORY"] for name in ("PIPE", "LOG"))
    if os.environ.get(_FAULT) == "start":
        sys.stderr.write("Cannot access the device\n")
        return 1
    if _send_command("get_server_list") is not None:
        sys.stderr.write("An instance of this daemon is already running\n")
        return 1
    ready, told = os.pipe()
    if background and os.fork():
        os.close(told)
        return 0 if os.read(ready, 1) else 1
    if background:
        os.setsid()
    if os.environ.get(_FAULT) == "slow":
        time.sleep(_SLOW_S)
    daemon = _Daemon(pipe, log)
    try:
        daemon.listen()
    except OSError as exc:
        sys.stderr.write(f"Failed to bind to socket: {exc.strerror}\n")
        os._exit(1)
    # Close all inherited files, so that no process waits for the daemon's end by accident.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    os.write(told, b"x")
    os.close(told)
    daemon.serve()


# --- a command ------------------------------------------------------------------------------------------


def _send_command(line: str) -> str | None:
    """Send a command to the daemon and return its response; None if there is no daemon."""
    session = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    session.settimeout(_TIMEOUT_S)
    try:
        session.connect(f"{os.environ['CUDA_MPS_PIPE_DIRECTORY']}/control")
        session.sendall(f"{line}\n".encode())
        answer = b""
        while piece := session.recv(_MAX_LINE):
            answer += piece
    except ConnectionResetError:
        return ""
    except OSError:
        return None
    finally:
        session.close()
    return answer.decode()


def main(arguments: list[str]) -> int:
    if arguments in (["-d"], ["-f"]):
        return _run_daemon(background=arguments == ["-d"])
    for line in sys.stdin:
        answer = _send_command(line.strip())
        if answer is None:
            sys.stderr.write("Cannot find MPS control daemon process\n")
            return 1
        sys.stdout.write(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
