"""Builds the simulated NVML library: compiled once per version of its source, into the cache.

${XDG_CACHE_HOME:-~/.cache}/kgwe/nvml/<digest>/
    libnvidia-ml.so.1     all functions
    old/libnvidia-ml.so.1 without functions of recent drivers
    nvidia-smi            resets GPUs; belongs next to the library
"""

from __future__ import annotations

import enum
import hashlib
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

from kgwe.errors import Permanent
from kgwe.local.host import paths
from kgwe.local.host.lock import Lock

LIBRARY: Final = "libnvidia-ml.so.1"
SMI: Final = "nvidia-smi"

_FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra")
_LIBRARY_FLAGS: Final = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1")
_PROGRAM: Final = "smi.c"
_LOCK_TIMEOUT_S: Final = 300.0


class Generation(enum.StrEnum):
    """The driver version that the library simulates."""

    NEW = "new"
    OLD = "old"
    """A driver of about 2020, without versioned structs of later years."""


_DEFINES: Final = {Generation.NEW: (), Generation.OLD: ("-DKGWE_OLD_DRIVER",)}


def ensure(generation: Generation = Generation.NEW) -> Path:
    """Return the directory with the library and nvidia-smi, built if necessary."""
    with resources.as_file(resources.files("kgwe.local.nvml") / "c") as source:
        return _build_if_missing(source, generation)


def _build_if_missing(source: Path, generation: Generation) -> Path:
    folder = paths.cache_root() / "nvml" / _compute_digest(source) / generation
    if (folder / SMI).exists():
        return folder
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Permanent("the simulated GPU driver needs a C compiler, but `cc` is not on PATH; install gcc or clang")
    with Lock(folder.with_suffix(".lock"), purpose="building the simulated GPU driver").hold(timeout_s=_LOCK_TIMEOUT_S):
        if not (folder / SMI).exists():
            _build(compiler, source, folder, _DEFINES[generation])
    return folder


def _build(compiler: str, source: Path, folder: Path, defines: tuple[str, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(path for path in source.glob("*.c") if path.name != _PROGRAM)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        library, smi = Path(scratch) / LIBRARY, Path(scratch) / SMI
        _compile([compiler, *_FLAGS, *_LIBRARY_FLAGS, *defines, "-o", library, *files, "-lpthread", "-ldl"])
        _compile([compiler, *_FLAGS, "-o", smi, source / _PROGRAM, "-ldl"])
        # The program is moved last: its presence shows that the build is complete.
        library.replace(folder / LIBRARY)
        smi.replace(folder / SMI)


def _compile(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Permanent(f"cannot build the simulated GPU driver:\n{done.stderr[-2000:]}")


def _compute_digest(source: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(source.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
