"""The Python parts of an image: wheels of the pinned requirements, and of KGWE itself, for any architecture."""

from __future__ import annotations

import compileall
import py_compile
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.images import recipe as recipes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kgwe.images.recipe import Recipe

_TIMEOUT_S: Final = 1200.0
# Extension modules load the runtime libraries of their own wheel. Tests and headers are never imported.
_UNUSED: Final = ("bin", "include", "share")
_UNUSED_FOLDERS: Final = frozenset({"tests", "testing", "__pycache__"})
_LAUNCHER: Final = """\
#!/usr/bin/python3
import sys

from kgwe.cli.main import main

sys.exit(main())
"""


def install_requirements(recipe: Recipe, architecture: str, source: Path, root: Path) -> None:
    """Install the pinned requirements of the recipe below `root`."""
    target = root / recipes.HOME.lstrip("/") / "lib"
    platforms = [f"--platform={name}" for name in recipes.WHEEL_PLATFORMS[architecture]]
    version = f"--python-version={recipes.PYTHON[0]}.{recipes.PYTHON[1]}"
    _pip(
        "install", "--no-deps", "--no-compile", "--only-binary=:all:", "--implementation=cp", version, *platforms,
        f"--target={target}", f"--requirement={source / recipe.requirements}",
    )  # fmt: skip
    for name in _UNUSED:
        shutil.rmtree(target / name, ignore_errors=True)
    for folder in sorted(target.glob("*/**/")):
        if folder.name in _UNUSED_FOLDERS and folder.parent.name in {"numpy", "lightgbm", "greenlet", "_core"}:
            shutil.rmtree(folder, ignore_errors=True)


def build_wheel(source: Path, work: Path) -> Path:
    """Build KGWE's own wheel from a checkout; the same wheel serves all architectures."""
    if not (source / "pyproject.toml").is_file():
        raise errors.Permanent(f"{source} is not a checkout of KGWE: it has no pyproject.toml. Run this in a checkout")
    work.mkdir(parents=True, exist_ok=True)
    _pip("wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={work}", str(source))
    return next(iter(sorted(work.glob("kgwe-*.whl"))))


def install_kgwe(wheel: Path, root: Path) -> None:
    """Install KGWE's wheel and its launcher below `root`."""
    home = root / recipes.HOME.lstrip("/")
    _pip("install", "--no-deps", "--no-compile", "--only-binary=:all:", f"--target={home / 'lib'}", str(wheel))
    shutil.rmtree(home / "lib/bin", ignore_errors=True)
    launcher = home / "bin/kgwe"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(_LAUNCHER)
    launcher.chmod(0o755)


def compile_bytecode(root: Path) -> bool:
    """Compile all modules below `root`, so that a read-only container starts fast; False if this Python cannot.

    The bytecode depends on the text alone, not on file times, and is never checked again.
    """
    if sys.version_info[:2] != recipes.PYTHON:
        return False
    compileall.compile_dir(
        root,
        maxlevels=40,
        quiet=2,
        stripdir=str(root),
        prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    return True


def _pip(*arguments: str) -> None:
    command: Sequence[str] = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise errors.Permanent(f"pip failed: {exc}") from exc
    if done.returncode:
        raise errors.Permanent(f"pip {arguments[0]} failed: {done.stderr.strip()[-2000:]}")
