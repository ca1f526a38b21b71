"""A real Prometheus on loopback that scrapes a list of targets."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from typing import TYPE_CHECKING

from kgwe.local.host import ports
from kgwe.local.prometheus import server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path


def _spawn(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "prometheus.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)


@contextlib.asynccontextmanager
async def running(
    program: Path, folder: Path, targets_url: str, jobs: Mapping[str, Mapping[str, str]], *, interval_s: float
) -> AsyncIterator[str]:
    """Run Prometheus while the context is open; yield its URL."""
    configuration = folder / "prometheus.yml"
    configuration.write_text(server.make_configuration(targets_url, interval_s=interval_s, jobs=jobs))
    listen = f"{ports.LOOPBACK}:{ports.allocate(('prometheus',))['prometheus']}"
    command = server.make_command(program, configuration, folder / "data", listen)
    process = _spawn(command, folder)
    try:
        await asyncio.to_thread(server.await_ready, f"http://{listen}")
        yield f"http://{listen}"
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)
