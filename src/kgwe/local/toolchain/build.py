"""Builds the control plane from source, once, into the cache.

`go install pkg@version` does not work for Kubernetes (its go.mod has replace directives). So small Go modules in
`go/` of this package require the programs and pin each dependency by hash. Each program is built into a temporary
file and moved into place when complete: an interrupted build continues where it stopped, with Go's build cache. A
lock prevents two concurrent builds.
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
from kgwe.model.units.phrasing import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# A cold build of everything takes 6 minutes on two cores; a waiting second builder must outlast a slow machine.
_LOCK_TIMEOUT_S = 3600.0
_UNREACHABLE = re.compile(
    r"dial tcp|no such host|i/o timeout|connection refused|proxyconnect|TLS handshake|module lookup disabled|"
    r"reading https?://|Get \"https?://"
)


def ensure_binaries(progress: Progress | None = None) -> Binaries:
    """Return all binaries of the control plane; build the missing ones."""
    progress = progress or Silent()
    search = binaries.find()
    if not search.missing:
        return Binaries(search.found)
    for sentence in search.rejected:
        progress.note(f"skipping {sentence}")
    with Lock(paths.cache_root() / "build.lock", purpose="building the control plane").hold(
        timeout_s=_LOCK_TIMEOUT_S, waiting=progress.note
    ):
        search = binaries.find()  # the last holder of the lock may have built them
        built = build(search.missing, progress)
    return Binaries({**search.found, **built})


def build(tools: Iterable[Tool], progress: Progress) -> dict[str, Found]:
    """Build the tools into the cache; the caller holds the lock."""
    tools = list(tools)
    if not tools:
        return {}
    go = golang.find(progress)
    progress.note(
        f"Building {', '.join(tool.name for tool in tools)} from source. This happens once and takes several minutes."
    )
    built = {}
    for number, tool in enumerate(tools, start=1):
        with progress.step(f"Building {tool.name} {tool.version} ({number} of {len(tools)})") as step:
            built[tool.name] = Found(_build_one(go, tool, _Narrator(step.update)), tool.version, Source.CACHE)
    return built


class _Narrator:
    """Summarizes the output of `go build -v`."""

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
            parts.append(f"{format_count(self.downloaded, 'module')} downloaded")
        if self.compiled:
            parts.append(f"{format_count(self.compiled, 'package')} compiled")
        self._say(", ".join(parts))


def _build_one(go: Path, tool: Tool, narrator: _Narrator) -> Path:
    destination = binaries.cache_path(tool)
    destination.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in destination.parent.glob(f".{tool.name}.*.partial"):
        abandoned.unlink()  # left by a killed build: we hold the lock, so no process is writing it
    with tempfile.TemporaryDirectory(prefix="kgwe-build-") as scratch:
        # Go needs a writable module directory, and the installed package may be read-only.
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
    tags = ("-tags", ",".join(tool.tags)) if tool.tags else ()
    command: list[str | Path] = [go, "build", "-v", "-trimpath", *tags, "-ldflags", ldflags, "-o", output, tool.package]
    # GOTOOLCHAIN=local: Go must not download another toolchain.
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
        raise Permanent(_explain_failure(tool, list(tail)))


def _explain_failure(tool: Tool, tail: list[str]) -> str:
    output = "\n".join(f"    {line}" for line in tail)
    if any(_UNREACHABLE.search(line) for line in tail):
        return (
            f"cannot build {tool.name} {tool.version}: its Go modules could not be downloaded.\n{output}\n"
            "Check the network and `go env GOPROXY`, or set KUBEBUILDER_ASSETS to a directory with the "
            f"binaries, or put {tool.name} into {binaries.cache_path(tool).parent}."
        )
    return (
        f"cannot build {tool.name} {tool.version}: go build failed.\n{output}\n"
        "Run the command again (finished parts are kept). If it fails again, `go clean -modcache` "
        "removes damaged downloads."
    )
