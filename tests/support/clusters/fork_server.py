"""Starts KGWE's processes by forking one that has imported their code, which takes a second of CPU per process.

Run as a program it is that process: it reads one order per line and answers each with one line. Every process that it
starts is a process of its own with the arguments, environment and exit code it would have had otherwise.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_MODULES = (
    "kgwe.cli.main",
    "kgwe.cli.processes.controller",
    "kgwe.cli.processes.mig",
    "kgwe.cli.processes.autoscaler",
    "kgwe.apps.autoscaler.main",
    "kgwe.cli.whatif",
    "kgwe.cli.defrag",
    "kgwe.cli.advise",
    "uvloop",
)


class ForkedProcess:
    """The part of subprocess.Popen that tests use."""

    def __init__(self, server: ForkServer, pid: int, argv: list[str]) -> None:
        self._server = server
        self._argv = argv
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask({"wait": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            _wait_for_end(self.pid, timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self._argv, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Do nothing when the process was seen to have ended. Until then its number is not given to another one."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _wait_for_end(pid: int, timeout: float | None) -> None:
    end = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(end, select.POLLIN)
        poller.poll(None if timeout is None else timeout * 1000)
    finally:
        os.close(end)


class ForkServer:
    """The process that is forked; it ends, with all it started, when this one does."""

    def __init__(self) -> None:
        # Without threads of the linear algebra, which a fork would lose.
        env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, __file__], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(
        self, arguments: list[str], env: dict[str, str], log: Path, messages: Path | None = None
    ) -> ForkedProcess:
        """`kgwe` with these arguments; what it prints goes to the log, its messages too unless they have their own."""
        pid = self.ask({"arguments": arguments, "env": env, "log": str(log), "messages": str(messages or log)})
        return ForkedProcess(self, pid, arguments)

    def ask(self, order: dict[str, Any]) -> Any:
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        with self._process:  # closes its input, which ends it
            pass


@functools.cache
def shared() -> ForkServer:
    """The one of this test process."""
    server = ForkServer()
    atexit.register(server.close)
    return server


# --- the process itself --------------------------------------------------------------------------------------


def serve() -> dict[str, Any] | None:
    """Follow orders until the input ends. In a forked process: return its order."""
    children: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = _reap(order["wait"], children)
        else:
            answer = os.fork()
            if answer == 0:
                return dict(order)
            children.add(answer)
        print(json.dumps(answer), flush=True)  # noqa: T201 - the answer
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    return None


def _reap(pid: int, children: set[int]) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        return None
    children.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _become(order: dict[str, Any]) -> None:
    """Run the command of an order in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order["env"])
    for number, name in enumerate((os.devnull, order["log"], order["messages"])):
        with open(name, "ab" if number else "rb") as file:  # noqa: PTH123 - descriptors
            os.dup2(file.fileno(), number)
    sys.argv = ["kgwe", *order["arguments"]]
    importlib.import_module("kgwe.cli.main").main()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test process, which ends this one
    for name in _MODULES:
        with contextlib.suppress(ImportError):  # uvloop is optional
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    if (order := serve()) is not None:
        _become(order)


if __name__ == "__main__":
    main()
