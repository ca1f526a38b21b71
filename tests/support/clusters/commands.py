"""`kgwe` as a user types it, forked from a process that has imported its code: a new one takes a second of CPU."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from tests.support.clusters import fork_server
from tests.support.patience import PATIENCE_S


async def kgwe(*arguments: str) -> tuple[int, str, str]:
    """Run the command to its end: exit code, what it printed, and its messages."""
    return await asyncio.to_thread(_run, list(arguments))


def _run(arguments: list[str]) -> tuple[int, str, str]:
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = fork_server.shared().start(arguments, dict(os.environ), out, err)
        try:
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
        return code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8")
