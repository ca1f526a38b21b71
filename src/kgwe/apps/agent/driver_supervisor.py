"""Keeps the GPU driver open: reopens it with back-off if it is missing or has failed.

The supervisor implements GpuDriver, so all parts of the agent share one object. While no driver is open each call
raises `Transient`, and `state` has the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from kgwe.hardware.driver import GpuDriver
    from kgwe.model.gpu.driver_data import Event, Instance, Machine, Reading

log = structlog.get_logger(__name__)
T = TypeVar("T")

# One timeout is no failure; this many in a row mean that the driver does not respond.
_SILENT_AFTER: Final = 3
_UNAVAILABLE: Final = "Unavailable"
_NOT_RESPONDING: Final = "NotResponding"


@dataclass(frozen=True, slots=True)
class DriverState:
    is_ready: bool
    reason: str
    message: str = ""


STARTING: Final = DriverState(is_ready=False, reason="Starting", message="the driver has not been opened yet")
READY: Final = DriverState(is_ready=True, reason="Ready", message="the driver responds")


class DriverSupervisor:
    """Keeps one driver open while `run` runs; implements GpuDriver."""

    def __init__(
        self,
        open_driver: Callable[[], Awaitable[GpuDriver]],
        *,
        retry_s: float = 15.0,
        retry_max_s: float = 300.0,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` is called when the state changes."""
        self._open = open_driver
        self._retry_s = (retry_s, retry_max_s)
        self._driver: GpuDriver | None = None
        self._gone = asyncio.Event()
        self._silent = 0
        self.state = STARTING
        self._on_change = on_change
        #: set while a driver is open
        self.opened = asyncio.Event()

    async def run(self) -> None:
        """Open the driver, and reopen it after a failure."""
        attempt = 0
        try:
            while True:
                if await self._open_driver():
                    attempt = 0
                    await self._gone.wait()
                    await self._close_driver()
                    continue
                first, most = self._retry_s
                # Jitter of a tenth, so that nodes do not retry simultaneously after a driver upgrade.
                await asyncio.sleep(min(first * 2.0 ** min(attempt, 16), most) * (1 + random.random() / 10))  # noqa: S311
                attempt += 1
        finally:
            await self._close_driver()

    async def _open_driver(self) -> bool:
        self._gone.clear()
        self._silent = 0
        try:
            self._driver = await self._open()
        except errors.KgweError as exc:
            self._set_state(DriverState(is_ready=False, reason=reason_of(exc), message=str(exc)))
            return False
        self._set_state(READY)
        self.opened.set()
        return True

    async def _close_driver(self) -> None:
        driver, self._driver = self._driver, None
        self.opened.clear()
        if driver is not None:
            with contextlib.suppress(errors.KgweError):
                await driver.close()

    def _set_state(self, state: DriverState) -> None:
        if state == self.state:
            return
        (log.info if state.is_ready else log.warning)("driver_state", reason=state.reason, message=state.message)
        self.state = state
        self._on_change()

    # --- calls ------------------------------------------------------------------------------------------

    @property
    def _require_driver(self) -> GpuDriver:
        if self._driver is None:
            raise errors.Transient(f"no driver: {self.state.message}")
        return self._driver

    async def _track_failures(self, answer: Awaitable[T]) -> T:
        """Await a call that a working driver always answers; update the state on failure."""
        try:
            found = await answer
        except errors.Transient as exc:
            self._silent += 1
            if self._silent >= _SILENT_AFTER:
                self._set_state(DriverState(is_ready=False, reason=_NOT_RESPONDING, message=str(exc)))
            raise
        except errors.Permanent as exc:
            self._set_state(DriverState(is_ready=False, reason=reason_of(exc), message=str(exc)))
            self._gone.set()
            raise
        self._silent = 0
        self._set_state(READY)
        return found

    async def machine(self) -> Machine:
        return await self._track_failures(self._require_driver.machine())

    async def readings(self) -> Sequence[Reading]:
        return await self._track_failures(self._require_driver.readings())

    async def events(self, timeout_s: float) -> Sequence[Event]:
        """Return the next events; without a driver, wait for one up to `timeout_s` and return none."""
        if not self.opened.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.opened.wait()
            return ()
        return await self._require_driver.events(timeout_s)

    async def set_mig_mode(self, uuid: str, *, enabled: bool) -> bool:
        return await self._require_driver.set_mig_mode(uuid, enabled=enabled)

    async def reset(self, uuid: str) -> None:
        await self._require_driver.reset(uuid)

    async def create_instance(self, uuid: str, profile: str, start: int) -> Instance:
        return await self._require_driver.create_instance(uuid, profile, start)

    async def destroy_instance(self, uuid: str, instance_id: int) -> None:
        await self._require_driver.destroy_instance(uuid, instance_id)

    async def close(self) -> None:
        await self._close_driver()


def reason_of(exc: errors.KgweError) -> str:
    """Return one CamelCase word: the driver's own reason if it has one."""
    reason = getattr(exc, "absence", None)
    return str(reason) if reason else _UNAVAILABLE
