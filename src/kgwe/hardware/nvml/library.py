"""NVIDIA's management library, opened privately, with its errors as `kgwe.errors`.

`pynvml` stores its library in a global, so each library gets its own copy of the module. One process can then use
several libraries (one per simulated machine), and tests do not disturb each other.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import importlib.util
import itertools
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import structlog

from kgwe import errors

if TYPE_CHECKING:
    from pathlib import Path

log = structlog.get_logger(__name__)

DEFAULT: Final = "libnvidia-ml.so.1"


class Absence(enum.StrEnum):
    """The reason for a missing driver."""

    NO_PACKAGE = "NoPythonPackage"
    """nvidia-ml-py is not installed."""
    NO_LIBRARY = "NoLibrary"
    """No libnvidia-ml.so.1: the driver is not installed, or not mounted into the container."""
    BROKEN_LIBRARY = "BrokenLibrary"
    """The file cannot be loaded or is not NVML."""
    NO_DRIVER = "DriverNotLoaded"
    """The library exists, but the kernel module is not loaded."""
    VERSION_MISMATCH = "VersionMismatch"
    """Library and kernel module have different versions: the node needs a reboot after a driver update."""
    NO_PERMISSION = "NoPermission"


class Unavailable(errors.Permanent):
    """Raised if there is no driver, with a known reason."""

    def __init__(self, absence: Absence, message: str) -> None:
        super().__init__(message)
        self.absence = absence


class CardLost(errors.Transient):
    """Raised if the GPU has fallen off the bus: no call succeeds until a reset."""


class Detached(errors.Transient):
    """Raised if the driver was reloaded: initialize again."""


class Code(enum.IntEnum):
    """The return codes of NVML that matter here."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    INSUFFICIENT_RESOURCES = 23
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29


_KINDS: Final[dict[int, type[errors.KgweError]]] = {
    Code.NOT_FOUND: errors.NotFound,
    Code.GPU_NOT_FOUND: errors.NotFound,
    Code.IN_USE: errors.Conflict,
    Code.INSUFFICIENT_RESOURCES: errors.Conflict,
    Code.INVALID_STATE: errors.Conflict,
    Code.RESET_REQUIRED: errors.Conflict,
    Code.NOT_SUPPORTED: errors.Permanent,
    Code.FUNCTION_NOT_FOUND: errors.Permanent,
    Code.DEPRECATED: errors.Permanent,
    Code.NO_PERMISSION: errors.Permanent,
    Code.INVALID_ARGUMENT: errors.Permanent,
    Code.ARGUMENT_VERSION_MISMATCH: errors.Permanent,
    Code.GPU_IS_LOST: CardLost,
    Code.UNINITIALIZED: Detached,
}

# Unsupported by the GPU or driver: not an error.
_ORDINARY: Final = frozenset({Code.SUCCESS, Code.NOT_SUPPORTED, Code.NOT_FOUND, Code.INVALID_ARGUMENT})

_ABSENCES: Final = {
    Code.DRIVER_NOT_LOADED: (Absence.NO_DRIVER, "the NVIDIA kernel module is not loaded, or the machine has no GPU"),
    Code.LIB_RM_VERSION_MISMATCH: (
        Absence.VERSION_MISMATCH,
        "the NVIDIA library and the kernel module have different versions; reboot the machine",
    ),
    Code.NO_PERMISSION: (Absence.NO_PERMISSION, "no permission to use the NVIDIA driver (/dev/nvidiactl)"),
}

# Earlier names of functions with the same signature.
_FORMER_NAMES: Final = {
    "nvmlInitWithFlags": ("nvmlInit_v2", "nvmlInit"),
    "nvmlDeviceGetCount_v2": ("nvmlDeviceGetCount",),
    "nvmlDeviceGetHandleByIndex_v2": ("nvmlDeviceGetHandleByIndex",),
    "nvmlDeviceGetPciInfo_v3": ("nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": ("nvmlDeviceGetNvLinkRemotePciInfo",),
}

_copies = itertools.count()


class Library:
    """Calls of one library. They block: only for the threads of the driver."""

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = str(path or DEFAULT)
        self.nvml = _pynvml_for(self.path, os.getpid())
        self._told: set[tuple[str, int]] = set()

    def initialise(self) -> None:
        """Attach to the driver; NVML requires it once per process."""
        try:
            self.nvml.nvmlInit()
        except self.nvml.NVMLError as exc:
            if exc.value in _ABSENCES:
                absence, message = _ABSENCES[exc.value]
                raise Unavailable(absence, f"{self.path}: {message}") from exc
            if exc.value == Code.FUNCTION_NOT_FOUND:
                raise Unavailable(
                    Absence.BROKEN_LIBRARY, f"{self.path} has no nvmlInitWithFlags: it is not NVML"
                ) from exc
            raise errors.Transient(f"{self.path}: cannot initialize NVML: {exc}") from exc

    def shut_down(self) -> None:
        self.call_or_code("nvmlShutdown")

    def call_or_code(self, function: str, *arguments: Any) -> tuple[Any, int]:
        """Return (value, code); the value is None unless the code is SUCCESS."""
        try:
            return getattr(self.nvml, function)(*arguments), Code.SUCCESS
        except self.nvml.NVMLError as exc:
            return None, int(exc.value)

    def call(self, function: str, *arguments: Any) -> Any:
        """Return the value of a call that must succeed."""
        answer, code = self.call_or_code(function, *arguments)
        if code != Code.SUCCESS:
            raise self.make_error(code, function)
        return answer

    def call_if_supported(self, function: str, *arguments: Any) -> Any:
        """Return the value, or None if the GPU or driver does not support it; raise only for a lost GPU."""
        answer, code = self.call_or_code(function, *arguments)
        if code == Code.SUCCESS:
            return answer
        if code in {Code.GPU_IS_LOST, Code.UNINITIALIZED}:
            raise self.make_error(code, function)
        if code not in _ORDINARY and (function, code) not in self._told:
            self._told.add((function, code))
            log.info("nvml_unsupported", function=function, reason=self.describe(code), library=self.path)
        return None

    def first_supported(self, calls: tuple[str, ...], *arguments: Any) -> Any:
        """Return the value of the first supported function; the newest comes first."""
        for function in calls:
            if (answer := self.call_if_supported(function, *arguments)) is not None:
                return answer
        return None

    def make_error(self, code: int, what: str) -> errors.KgweError:
        """Return the exception for a code."""
        kind = _KINDS.get(code, errors.Transient)
        return kind(f"{what}: {self.describe(code)}")

    def describe(self, code: int) -> str:
        return str(self.nvml.NVMLError(code))


class _Symbols:
    """The functions of a library, under their earlier names if the newer are missing."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        for known in (name, *_FORMER_NAMES.get(name, ())):
            try:
                return getattr(self._library, known)
            except AttributeError:
                continue
        raise AttributeError(name)


@functools.cache
def _pynvml_for(path: str, pid: int) -> Any:  # noqa: ARG001 -- locks in the module may be held when a process forks
    """Return one permanent copy per library: ctypes never frees the types of a module."""
    library = _load(path)
    module = _private_pynvml()
    module.nvmlLib = _Symbols(library)
    return module


def _private_pynvml() -> Any:
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise Unavailable(Absence.NO_PACKAGE, "nvidia-ml-py is not installed: pip install 'kgwe[agent]'")
    name = f"{__name__}_{next(_copies)}"
    spec = importlib.util.spec_from_file_location(name, found.origin)
    if spec is None or spec.loader is None:
        raise Unavailable(Absence.NO_PACKAGE, f"cannot import {found.origin}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # it looks itself up by name during its import
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def _load(path: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except OSError as exc:
        if "cannot open shared object file" in str(exc):
            raise Unavailable(
                Absence.NO_LIBRARY, f"no NVIDIA driver library found ({exc}); set KGWE_NVML_LIBRARY to its path"
            ) from exc
        raise Unavailable(Absence.BROKEN_LIBRARY, f"cannot load the NVIDIA driver library: {exc}") from exc
