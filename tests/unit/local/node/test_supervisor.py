"""The first process of a node: a program that ends is started again, and SIGTERM ends the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.patience import PATIENCE_S, until

if TYPE_CHECKING:
    from pathlib import Path

_SCRIPT = """
import signal, sys
from pathlib import Path
from kgwe.local.node.spec import Program
from kgwe.local.node.supervisor import Supervisor
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT})
folder = Path(sys.argv[1])
supervisor = Supervisor(folder, restart_s=0.01)
command = ("/bin/sh", "-c", f"echo x >> {folder}/starts; exec sleep 600")
supervisor.start(Program("sleeper", command, str(folder / "log")))
supervisor.run()
"""


async def test_a_killed_program_is_started_again(tmp_path: Path):
    starts = tmp_path / "starts"
    process = _start(tmp_path)
    try:
        await until(lambda: starts.exists() and starts.read_text().count("x") == 1)
        await until(lambda: _children(process.pid))
        os.kill(_children(process.pid)[0], signal.SIGKILL)
        await until(lambda: starts.read_text().count("x") == 2)
    finally:
        await until(lambda: _children(process.pid))
        left = _children(process.pid)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        for pid in left:
            os.kill(pid, signal.SIGKILL)


def _start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _SCRIPT, str(folder)])


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123
        return [int(each) for each in file.read().split()]
