"""Sets the compute mode of a GPU with nvidia-smi.

In exclusive-process mode one process at a time may use a GPU. With an MPS daemon that process is its server, so that
no process bypasses the limits. The mode applies to the whole GPU, until it is set again or the machine reboots.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_EXCLUSIVE: Final = "EXCLUSIVE_PROCESS"
_SHARED: Final = "DEFAULT"


def compute_mode_setter(smi: str = "nvidia-smi", *, deadline_s: float = 10.0) -> Callable[[str, bool], Awaitable[None]]:
    """Return `set_exclusive(uuid, on)`, which raises Transient if nvidia-smi fails or hangs. Idempotent."""

    async def set_exclusive(uuid: str, on: bool) -> None:  # noqa: FBT001 - reads as it is called
        mode = _EXCLUSIVE if on else _SHARED
        try:
            process = await asyncio.create_subprocess_exec(
                *(smi, "-i", uuid, "-c", mode),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as exc:
            raise errors.Transient(f"cannot run {smi}: {exc.strerror}") from exc
        try:
            async with asyncio.timeout(deadline_s):
                said, _ = await process.communicate()
        except TimeoutError as exc:
            raise errors.Transient(f"{smi} did not set the compute mode of {uuid} within {deadline_s:g} s") from exc
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            words = said.decode(errors="replace").strip()[-200:]
            raise errors.Transient(f"cannot set the compute mode of {uuid} to {mode}: {words}")

    return set_exclusive
