"""Reads XID errors from an NVML event set.

Events wait here until they are read, so that a cancelled caller loses none.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

from kgwe.hardware.nvml.library import Code
from kgwe.model.gpu.driver_data import Event

if TYPE_CHECKING:
    from collections import deque

    from kgwe.hardware.nvml.library import Library

_XID: Final = 0x8
_NO_INSTANCE: Final = 0xFFFFFFFF
_AT_ONCE: Final = 1000
"""Maximum number of events per call, so that an event storm cannot block us."""


class EventReader:
    """The event set of one library."""

    def __init__(self, library: Library, taken: deque[Event]) -> None:
        self._library = library
        self._taken = taken
        self._set: Any = None
        self._cards: dict[int, str] = {}
        """Handle -> GPU, because a lost GPU does not return its name."""

    def open(self) -> None:
        """Register all GPUs that can report; a driver without events has none to lose."""
        self._set = self._library.call_if_supported("nvmlEventSetCreate")
        if self._set is None:
            return
        for index in range(self._library.call("nvmlDeviceGetCount")):
            handle, code = self._library.call_or_code("nvmlDeviceGetHandleByIndex", index)
            if code != Code.SUCCESS:
                continue
            self._cards[_read_address(handle)] = self._library.call_or_code("nvmlDeviceGetUUID", handle)[0] or ""
            self._library.call_or_code("nvmlDeviceRegisterEvents", handle, _XID, self._set)

    def wait(self, timeout_ms: int) -> None:
        """Take the available events, waiting for the first. May return at once if the driver has no events."""
        if self._set is not None and self._drain(self._set, timeout_ms) == Code.GPU_IS_LOST:
            self._renew()

    def close(self) -> None:
        """Take the remaining events and free the set."""
        if self._set is not None:
            old, self._set = self._set, None
            self._drain(old, 0)
            self._library.call_or_code("nvmlEventSetFree", old)

    def _renew(self) -> None:
        """Open a set without the lost GPU before the old set is freed."""
        old = self._set
        self.open()
        self._drain(old, 0)
        self._library.call_or_code("nvmlEventSetFree", old)

    def _drain(self, event_set: Any, timeout_ms: int) -> int:
        """Take all available events, waiting for the first; return the code that ended it."""
        code = int(Code.SUCCESS)
        for _ in range(_AT_ONCE):
            data, code = self._library.call_or_code("nvmlEventSetWait_v2", event_set, timeout_ms)
            if code != Code.SUCCESS:
                break
            if data.eventType & _XID:
                self._taken.append(self._event(data))
            timeout_ms = 0
        return code

    def _event(self, data: Any) -> Event:
        card = self._cards.get(_read_address(data.device))
        if card is None:
            card = self._library.call_or_code("nvmlDeviceGetUUID", data.device)[0] or ""
        instance = None if data.gpuInstanceId == _NO_INSTANCE else int(data.gpuInstanceId)
        return Event(card, int(data.eventData), instance)


def _read_address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
