"""Building the control plane from source, once, into the cache.

`go install pkg@version` refuses Kubernetes (its go.mod has replace directives), so three tiny Go modules, shipped with
this package below `go/`, require what is to be built and pin every dependency by hash. Each program is built on its own
into a temporary file and moved into place when complete: an interrupted build continues where it stopped, helped by
Go's own build cache. A lock keeps two builders from doing the same work twice.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import deque
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from kgwe.errors import Permanent
from kgwe.local.host import paths
from kgwe.local.host.lock import Lock
from kgwe.local.host.progress import Progress, Silent
from kgwe.local.toolchain import binaries, golang
from kgwe.local.toolchain.binaries import Binaries, Found, Source, Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# A cold build of everything takes 6 minutes on two cores; a waiting second builder should outlast a slow machine.
_LOCK_TIMEOUT_S = 3600.0
_UNREACHABLE = re.compile(
    r"dial tcp|no such host|i/o timeout|connection refused|proxyconnect|TLS handshake|module lookup disabled|"
    r"reading https?://|Get \"https?://"
)


def ensure_binaries(progress: Progress | None = None) -> Binaries:
    """Every program of the control plane, building what cannot be found."""
    progress = progress or Silent()
    search = binaries.find()
    if not search.missing:
        return Binaries(search.found)
    for sentence in search.passed_over:
        progress.note(f"passing over {sentence}")
    with Lock(paths.cache_root() / "build.lock", purpose="building the control plane").held(
        timeout_s=_LOCK_TIMEOUT_S, waiting=progress.note
    ):
        search = binaries.find()  # the last holder of the lock may have built what we need
        built = build(search.missing, progress)
    return Binaries({**search.found, **built})


def build(tools: Iterable[Tool], progress: Progress) -> dict[str, Found]:
    """Build the tools into the cache; the caller holds the lock."""
    tools = list(tools)
    if not tools:
        return {}
    go = golang.find(progress)
    progress.note(
        f"Building {', '.join(tool.name for tool in tools)} from source; this happens once and takes some minutes."
    )
    built = {}
    for number, tool in enumerate(tools, start=1):
        with progress.step(f"Building {tool.name} {tool.version} ({number} of {len(tools)})") as step:
            built[tool.name] = Found(_build_one(go, tool, _Narrator(step.update)), tool.version, Source.CACHE)
    return built


class _Narrator:
    """Turns what `go build -v` prints into a few words."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.downloaded = 0
        self.compiled = 0

    def hear(self, line: str) -> None:
        if line.startswith("go: downloading"):
            self.downloaded += 1
        elif not line.startswith("go: "):
            self.compiled += 1
        parts = []
        if self.downloaded:
            parts.append(f"{self.downloaded} modules fetched")
        if self.compiled:
            parts.append(f"{self.compiled} packages compiled")
        self._say(", ".join(parts))


def _build_one(go: Path, tool: Tool, narrator: _Narrator) -> Path:
    destination = binaries.cache_path(tool)
    destination.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in destination.parent.glob(f".{tool.name}.*.partial"):
        abandoned.unlink()  # of a build that was killed: we hold the lock, so no process is writing it
    with tempfile.TemporaryDirectory(prefix="kgwe-build-") as scratch:
        # A copy: the installed package may be read-only, and Go insists on a writable module directory.
        module = Path(scratch) / tool.module
        with resources.as_file(resources.files("kgwe.local") / "go" / tool.module) as source:
            shutil.copytree(source, module)
        partial = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
        try:
            _run_go(go, tool, module, partial, narrator)
            partial.replace(destination)
        finally:
            partial.unlink(missing_ok=True)
    return destination


def _run_go(go: Path, tool: Tool, module: Path, output: Path, narrator: _Narrator) -> None:
    ldflags = " ".join(("-s", "-w", *tool.ldflags))
    command: list[str | Path] = [go, "build", "-v", "-trimpath", "-ldflags", ldflags, "-o", output, tool.package]
    # GOTOOLCHAIN=local: the tool chain was chosen with care, it must not go and fetch another one.
    settings = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    tail: deque[str] = deque(maxlen=12)
    with subprocess.Popen(
        command,
        cwd=module,
        env={**os.environ, **settings},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            for line in process.stdout or ():
                tail.append(line.rstrip())
                narrator.hear(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise Permanent(_explain(tool, list(tail)))


def _explain(tool: Tool, tail: list[str]) -> str:
    output = "\n".join(f"    {line}" for line in tail)
    if any(_UNREACHABLE.search(line) for line in tail):
        return (
            f"cannot build {tool.name} {tool.version}: its Go modules could not be downloaded.\n{output}\n"
            "Next: check the network and `go env GOPROXY`, or point KUBEBUILDER_ASSETS at a directory with the "
            f"binaries, or put {tool.name} into {binaries.cache_path(tool).parent}."
        )
    return (
        f"cannot build {tool.name} {tool.version}: go build failed.\n{output}\n"
        "Next: run the command again (finished parts are kept); if it fails the same way, `go clean -modcache` "
        "removes damaged downloads."
    )
