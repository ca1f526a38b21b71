"""Real processes as the ranks of a gang: each handles SIGUSR1 by writing a checkpoint, then confirms it.

A directory stands in for /proc. It shows the real processes with the cgroups that a kubelet would have put them in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

_RANK = """
import os, signal, sys, time
root = sys.argv[1]
def save(number, frame):
    with open(root + '/calls', 'a') as file:
        file.write(f'{time.time()}\\n')
    with open(root + '/tmp/kgwe-checkpoint', 'w') as file:
        file.write('done')
signal.signal(signal.SIGUSR1, save)
if sys.argv[2] == 'loader':
    if os.fork() == 0:  # a data loader, which inherits the handler
        while True:
            time.sleep(60)
print('ready', flush=True)
while True:
    time.sleep(60)
"""
_IDLE = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(60)"


class Ranks:
    """Processes of pods, and the /proc that shows them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.proc = directory / "proc"
        self.proc.mkdir()
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, uid: str, *, handles: bool = True, loader: bool = False) -> int:
        """Start the rank of a pod; return its pid once it is ready."""
        root = self.directory / f"root-{uid}"
        (root / "tmp").mkdir(parents=True)
        code = _RANK if handles else _IDLE
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(root), "loader" if loader else ""],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self._processes[uid] = process
        self._show(process.pid, uid, root)
        for child in _children(process.pid):
            self._show(child, uid, root)
        return process.pid

    def _show(self, pid: int, uid: str, root: Path) -> None:
        place = self.proc / str(pid)
        place.mkdir()
        (place / "cgroup").write_text(f"0::/kubepods/burstable/pod{uid}/{'a' * 64}\n")
        (place / "status").symlink_to(f"/proc/{pid}/status")
        (place / "root").symlink_to(root)

    def read_calls(self, uid: str) -> list[float]:
        """Return when the rank got its signals."""
        try:
            return [float(line) for line in (self.directory / f"root-{uid}" / "calls").read_text().split()]
        except FileNotFoundError:
            return []

    def is_running(self, uid: str) -> bool:
        return self._processes[uid].poll() is None

    def stop(self) -> None:
        for process in self._processes.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
