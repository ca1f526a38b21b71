"""The first process of a node, in namespaces of its own: `python -m kgwe.local.node.supervisor NODE_FILE`.

It makes the mounts and the network of the node, starts containerd, imports images, and starts the other programs. It
starts a program again when it ends, as an init system does. When it ends itself, the kernel kills everything inside,
and the mounts, links and firewall rules of the node disappear with their namespaces.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe.errors import KgweError, Permanent
from kgwe.local.host import processes
from kgwe.local.node import settings_files
from kgwe.local.node import spec as node_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.local.node.spec import NodeSpec, Program

_WAIT_S: Final = 60.0
_POLL_S: Final = 0.02
_RESTART_S: Final = 1.0
_STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT})


def make_mounts(spec: NodeSpec) -> None:
    """Give the node its own /run, /var/lib/kubelet, /var/log and /etc/hosts; the host does not see them."""
    _run("mount", "--make-rshared", "/")
    _run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run")
    for target in ("/var/lib/kubelet", "/var/lib/cni", "/var/log"):
        source = spec.folder / target.strip("/").replace("/", "-")
        source.mkdir(parents=True, exist_ok=True)
        Path(target).mkdir(parents=True, exist_ok=True)
        _run("mount", "--bind", str(source), target)
        _run("mount", "--make-rshared", target)
    _run("mount", "--bind", str(spec.folder / "hosts"), "/etc/hosts")
    for folder in (settings_files.CDI_FOLDER, "/run/netns", "/run/lock"):
        Path(folder).mkdir(parents=True, exist_ok=True)


def make_network(spec: NodeSpec) -> None:
    """Wait for the link that the runner puts here, and set its address and the routes."""
    deadline = time.monotonic() + _WAIT_S
    while "eth0:" not in Path("/proc/net/dev").read_text():
        if time.monotonic() > deadline:
            raise Permanent("the link to the host did not appear; see the log of the runner")
        time.sleep(_POLL_S)
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "add", f"{spec.addresses.node}/24", "dev", "eth0")
    _run("ip", "link", "set", "eth0", "up")
    _run("ip", "route", "add", "default", "via", spec.addresses.host)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def import_images(spec: NodeSpec) -> None:
    """Wait for containerd, and import the images of the node."""
    deadline = time.monotonic() + _WAIT_S
    while not _accepts_connections(settings_files.CONTAINERD_SOCKET):
        if time.monotonic() > deadline:
            raise Permanent(f"containerd does not respond; see {spec.runtime.log}")
        time.sleep(_POLL_S)
    for archive in spec.images:
        _run(spec.ctr, "--address", settings_files.CONTAINERD_SOCKET, "-n", "k8s.io", "images", "import", archive)


class Supervisor:
    """Starts programs, collects ended processes, and starts ended programs again."""

    def __init__(self, cluster: Path, *, restart_s: float = _RESTART_S) -> None:
        self._cluster = cluster
        self._restart_s = restart_s
        self._running: dict[int, Program] = {}
        self._due: list[tuple[float, Program]] = []

    def start(self, program: Program) -> None:
        record = processes.spawn(
            f"node-{program.name}", program.argv, log=Path(program.log), owner=self._cluster, env=program.env
        )
        self._running[record.pid] = program

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, which must be blocked like SIGCHLD."""
        while True:
            self._collect()
            self._start_due()
            timeout_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else 3600.0
            caught = signal.sigtimedwait({signal.SIGCHLD, *_STOPPING}, timeout_s)
            if caught is not None and caught.si_signo in _STOPPING:
                return

    def _collect(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            program = self._running.pop(pid, None)
            if program is not None:
                _say(f"{program.name} ended ({os.waitstatus_to_exitcode(status)}); starting it again")
                self._due.append((time.monotonic() + self._restart_s, program))

    def _start_due(self) -> None:
        now = time.monotonic()
        due = [program for when, program in self._due if when <= now]
        self._due = [each for each in self._due if each[0] > now]
        for program in due:
            self.start(program)


def main(arguments: list[str]) -> int:
    spec = node_spec.load_from_arguments(arguments)
    # Blocked before the first program starts: no end of a program is missed.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *_STOPPING})
    supervisor = Supervisor(Path(spec.cluster))
    try:
        make_mounts(spec)
        make_network(spec)
        supervisor.start(spec.runtime)
        import_images(spec)
        for program in spec.programs:
            supervisor.start(program)
    except (KgweError, OSError) as exc:
        _say(str(exc))
        return 1
    _say("all programs are started")
    supervisor.run()
    return 0


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Permanent(f"`{_join(command)}` failed: {(done.stderr or done.stdout).strip()}")


def _join(command: Sequence[str]) -> str:
    return " ".join(command)


def _accepts_connections(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
