"""NVML values that several readers need, in KGWE's units."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, Final

from kgwe.model.gpu.catalog import NVLINK_GB_PER_S, Architecture

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.hardware.nvml.library import Library

MAX_LINKS: Final = 36

_LINK_COUNT: Final = 91


def bus_id(pci: Any) -> str:
    """Return the long form, `00000000:1B:00.0`; the oldest drivers fill in only the short one."""
    domain, colon, rest = (decode_text(pci.busId) or decode_text(pci.busIdLegacy)).upper().partition(":")
    if not colon or set(domain) == {"F"}:  # a device of another machine
        return ""
    return f"{domain:0>8}{colon}{rest}"


def decode_text(raw: Any) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def memory_info(library: Library, handle: Any) -> tuple[int | None, int | None]:
    """Return (total, used) in MiB.

    The second version excludes memory that the driver reserves. Some GPUs have only it, some drivers only the first.
    """
    info = library.call_if_supported("nvmlDeviceGetMemoryInfo", handle, library.nvml.nvmlMemory_v2)
    if info is None:
        info = library.call_if_supported("nvmlDeviceGetMemoryInfo", handle)
    return (None, None) if info is None else (info.total >> 20, info.used >> 20)


def read_fields(library: Library, handle: Any, wanted: list[tuple[int, int]]) -> list[int | None]:
    """Return the values of (field, scope), read in one call."""
    if not wanted:
        return []
    values = library.call_if_supported("nvmlDeviceGetFieldValues", handle, wanted)
    if values is None:
        return [None] * len(wanted)
    return [_value(value) for value in values]


# By NVML's number of the type.
_MEMBERS: Final = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


def _value(value: Any) -> int | None:
    member = _MEMBERS.get(value.valueType)
    return None if value.nvmlReturn or member is None else math.floor(getattr(value.value, member))


def link_count(library: Library, handle: Any) -> int:
    """Return the number of NVLinks to query; some of them may not be connected."""
    (count,) = read_fields(library, handle, [(_LINK_COUNT, 0)])
    if count is not None:
        return min(count, MAX_LINKS)
    for link in range(MAX_LINKS):
        if library.call_if_supported("nvmlDeviceGetNvLinkState", handle, link) is None:
            return link
    return MAX_LINKS


# NVML numbers all versions that existed: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0, 6.0.
_GENERATIONS: Final = (0, 1, 2, 2, 3, 3, 4, 5, 6)
_OF_ARCHITECTURE: Final = {
    Architecture.VOLTA: 2,
    Architecture.TURING: 2,
    Architecture.AMPERE: 3,
    Architecture.HOPPER: 4,
    Architecture.BLACKWELL: 5,
}


def nvlink_generation(number: int | None, architecture: Architecture | None) -> int | None:
    """Return the generation of an NVLink.

    Some libraries return it instead of NVML's number. If the GPU model allows only one of the two, that one is used.
    """
    if number is None:
        return None
    usual = _OF_ARCHITECTURE.get(architecture) if architecture else None
    if number == usual:
        return number
    return _GENERATIONS[number] or None if number < len(_GENERATIONS) else None


def link_gb_per_s(mbps: int | None, generation: int | None) -> float | None:
    """Return the rate of one direction of a link.

    Drivers report the line rate, 26.6 for an NVLink 4; data sheets and KGWE use the data rate, 25.
    """
    if not mbps:
        return None
    rate, usual = mbps / 1000, NVLINK_GB_PER_S.get(generation or 0)
    return float(usual) if usual and usual < rate < usual * _MOST_CODING else rate


# 17 symbols for 16 since NVLink 4, 33 for 32 before.
_MOST_CODING: Final = 1.1


def list_bits(words: Iterable[int]) -> list[int]:
    """Return the bit numbers of a mask of unsigned longs."""
    width = 8 * ctypes.sizeof(ctypes.c_ulonglong)
    return [width * i + bit for i, word in enumerate(words) if word for bit in range(width) if word >> bit & 1]


def format_ranges(numbers: list[int]) -> str:
    """Return `0-2,7` for 0, 1, 2, 7."""
    parts: list[str] = []
    first = None
    for i, number in enumerate(numbers):
        first = number if first is None else first
        if i + 1 == len(numbers) or numbers[i + 1] != number + 1:
            parts.append(str(first) if first == number else f"{first}-{number}")
            first = None
    return ",".join(parts)
