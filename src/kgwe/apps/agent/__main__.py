"""The agent process of the DaemonSet: `python -m kgwe.apps.agent`, settings from the environment.

`kgwe agent` parses flags and then replaces itself with this process, which keeps the long-running process small.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib.util
import os
import sys
import types
from pathlib import Path

CONFIG_ENV = "KGWE_AGENT_CONFIG"

# M_ARENA_MAX of mallopt(3): the few other threads need no separate heaps.
_M_ARENA_MAX = -8


def exclude_unused_modules() -> None:
    """Prevent imports of unused modules, which are a fifth of the process."""
    # structlog imports rich and its lexers, for colors on a terminal.
    sys.modules["rich"] = None  # type: ignore[assignment] # "cannot be imported", as the import system spells it
    # Only lightkube's kubeconfig reader is used; the package itself loads a class for each kind.
    spec = importlib.util.find_spec("lightkube")
    if spec is None:
        return
    models = types.ModuleType("lightkube.core.internal_models")
    models.meta_v1 = models  # type: ignore[attr-defined] # what its exceptions import from there
    sys.modules["lightkube"] = importlib.util.module_from_spec(spec)
    sys.modules[models.__name__] = models
    try:
        importlib.import_module("kgwe.kube.transport.kubeconfig")
    except (ImportError, AttributeError):
        # Another release has another structure: import everything then.
        for name in [name for name in sys.modules if name.partition(".")[0] == "lightkube"]:
            del sys.modules[name]


def run() -> None:
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_ARENA_MAX, 1)
    exclude_unused_modules()
    from kgwe import errors  # noqa: PLC0415 - after the large is out of the way
    from kgwe.apps.agent import main, settings  # noqa: PLC0415
    from kgwe.telemetry import logs  # noqa: PLC0415

    config = os.environ.get(CONFIG_ENV)
    try:
        loaded = settings.load(Path(config) if config else None)
        logs.configure(level=loaded.log_level)

        def release_memory() -> None:
            """Return memory to the system that only the start needed."""
            gc.collect()
            gc.freeze()
            libc.malloc_trim(0)

        asyncio.run(main.serve(loaded, settled=release_memory))
    except errors.KgweError as exc:
        sys.stderr.write(f"kgwe: {exc}\n")
        sys.exit(1)


if __name__ == "__main__":
    run()
