"""The agent as the DaemonSet runs it: `python -m kgwe.apps.agent`, settings from the environment.

`kgwe agent` becomes this process: it parses flags and then is replaced by it, so that what runs for months on every
node is as small as it can be.
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

# M_ARENA_MAX of mallopt(3): the few threads beside the event loop need no heaps of their own.
_M_ARENA_MAX = -8


def exclude_unused_modules() -> None:
    """Keep out of the process what comes along unused: a fifth of it."""
    # structlog takes rich and its lexers along, for colours on a terminal.
    sys.modules["rich"] = None  # type: ignore[assignment] # "cannot be imported", as the import system spells it
    # Of lightkube only the reading of kubeconfigs is used; the package itself loads a class for every kind there is.
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
        # Another release is built otherwise: then all of it.
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

        def give_back() -> None:
            """Starting takes memory that running does not."""
            gc.collect()
            gc.freeze()
            libc.malloc_trim(0)

        asyncio.run(main.serve(loaded, settled=give_back))
    except errors.KgweError as exc:
        sys.stderr.write(f"kgwe: {exc}\n")
        sys.exit(1)


if __name__ == "__main__":
    run()
