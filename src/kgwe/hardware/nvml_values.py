"""Answers of NVML that several readers need, in our units."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.hardware.nvml_library import Library

MAX_LINKS: Final = 36

_LINK_COUNT: Final = 91


def bus_id(pci: Any) -> str:
    """The long form, `00000000:1B:00.0`; the oldest drivers fill in only the short one."""
    domain, colon, rest = (text(pci.busId) or text(pci.busIdLegacy)).upper().partition(":")
    return f"{domain:0>8}{colon}{rest}" if colon else ""


def text(raw: Any) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def memory_info(library: Library, handle: Any) -> tuple[int | None, int | None]:
    """(total, used) in MiB. The second version tells what is used without what the driver keeps for itself; some
    cards have only it, some drivers only the first."""
    info = library.known("nvmlDeviceGetMemoryInfo", handle, library.nvml.nvmlMemory_v2)
    if info is None:
        info = library.known("nvmlDeviceGetMemoryInfo", handle)
    return (None, None) if info is None else (info.total >> 20, info.used >> 20)


def fields(library: Library, handle: Any, wanted: list[tuple[int, int]]) -> list[int | None]:
    """The values of (field, scope), asked in one call."""
    if not wanted:
        return []
    values = library.known("nvmlDeviceGetFieldValues", handle, wanted)
    if values is None:
        return [None] * len(wanted)
    return [_value(value) for value in values]


# By NVML's number of the type.
_MEMBERS: Final = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


def _value(value: Any) -> int | None:
    member = _MEMBERS.get(value.valueType)
    return None if value.nvmlReturn or member is None else math.floor(getattr(value.value, member))


def link_count(library: Library, handle: Any) -> int:
    """How many NVLinks to ask for; some of them may not be wired."""
    (count,) = fields(library, handle, [(_LINK_COUNT, 0)])
    if count is not None:
        return min(count, MAX_LINKS)
    for link in range(MAX_LINKS):
        if library.known("nvmlDeviceGetNvLinkState", handle, link) is None:
            return link
    return MAX_LINKS


def bits(words: Iterable[int]) -> list[int]:
    """The numbers in a mask of unsigned longs."""
    width = 8 * ctypes.sizeof(ctypes.c_ulonglong)
    return [width * i + bit for i, word in enumerate(words) if word for bit in range(width) if word >> bit & 1]


def ranges(numbers: list[int]) -> str:
    """`0-2,7` of 0, 1, 2, 7."""
    parts: list[str] = []
    first = None
    for i, number in enumerate(numbers):
        first = number if first is None else first
        if i + 1 == len(numbers) or numbers[i + 1] != number + 1:
            parts.append(str(first) if first == number else f"{first}-{number}")
            first = None
    return ",".join(parts)
