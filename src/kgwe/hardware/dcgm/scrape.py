"""Reads values that only DCGM measures (tensor, SM, memory and engine activity, also per MIG instance) from
dcgm-exporter.

The text is read line by line for a few names. The labels of a line are the same in each scrape, so their meaning is
cached. Values out of range, and missing GPUs and fields, are unknown. If no exporter responds, `activities` raises
`Transient`, and the caller continues without.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final, Self

import httpx2

from kgwe import errors
from kgwe.hardware.dcgm.metrics import Field
from kgwe.model.telemetry.sample import Activity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from kgwe.model.telemetry.sample import Unit

_FIELDS: Final = {
    Field.GR_ENGINE_ACTIVE.value[0]: 0,
    Field.SM_ACTIVE.value[0]: 1,
    Field.TENSOR_ACTIVE.value[0]: 2,
    Field.DRAM_ACTIVE.value[0]: 3,
}
_PREFIX: Final = "DCGM_FI_PROF_"
# Label values may contain anything, including `}` and escaped quotes.
_LINE: Final = re.compile(r'(\w+)\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}\s+(\S+)')
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

# 64 instances times 60 fields times 400 bytes is 1.5 MB.
MAX_BYTES: Final = 8 * 1024 * 1024
_MAX_REMEMBERED: Final = 4096


class MetricsReader:
    """Reads the text of one exporter repeatedly."""

    def __init__(self) -> None:
        #: labels of a line -> the unit it is about
        self._units: dict[str, Unit | None] = {}

    def read(self, text: str) -> dict[Unit, Activity]:
        """Return the activity of each unit in the text."""
        found: dict[Unit, list[float | None]] = {}
        for index, labels, value in _parse_lines(text):
            unit = self._unit(labels)
            if unit is not None and value is not None:
                found.setdefault(unit, [None] * len(_FIELDS))[index] = value
        return {unit: Activity(*values) for unit, values in found.items()}

    def _unit(self, labels: str) -> Unit | None:
        if labels not in self._units:
            if len(self._units) >= _MAX_REMEMBERED:
                # Pods come and go, and their names are in the labels.
                self._units.clear()
            self._units[labels] = _unit_of(labels)
        return self._units[labels]


def _parse_lines(text: str) -> Iterator[tuple[int, str, float | None]]:
    for line in text.splitlines():
        if not line.startswith(_PREFIX):
            continue
        match = _LINE.match(line)
        if match is not None and (index := _FIELDS.get(match[1])) is not None:
            yield index, match[2], _share(match[3])


def _unit_of(labels: str) -> Unit | None:
    known = dict(_LABEL.findall(labels))
    uuid, instance = known.get("UUID", ""), known.get("GPU_I_ID", "")
    if not uuid or (instance and not instance.isdecimal()):
        return None
    return uuid, int(instance) if instance else None


def _share(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None


class DcgmScraper:
    """dcgm-exporter at one address. Idempotent; each call ends within the deadline."""

    def __init__(self, url: str, *, timeout_s: float = 2.0, max_bytes: int = MAX_BYTES) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._client = httpx2.AsyncClient(timeout=timeout_s, trust_env=False, follow_redirects=False)
        self._reader = MetricsReader()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()

    async def read_activities(self) -> dict[Unit, Activity]:
        """Return the activity of each unit that the exporter reports; raise `Transient` if it does not respond."""
        try:
            async with asyncio.timeout(self._timeout_s):
                text = await self._get()
        except TimeoutError as exc:
            raise errors.Transient(f"dcgm-exporter at {self.url} took longer than {self._timeout_s:g} s") from exc
        except httpx2.HTTPError as exc:
            raise errors.Transient(f"dcgm-exporter at {self.url} does not respond: {exc}") from exc
        return self._reader.read(text)

    async def _get(self) -> str:
        async with self._client.stream("GET", self.url) as response:
            if response.status_code != httpx2.codes.OK:
                raise errors.Transient(f"dcgm-exporter at {self.url} returned status {response.status_code}")
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > self._max_bytes:
                    raise errors.Transient(f"dcgm-exporter at {self.url} sent more than {self._max_bytes} bytes")
        return body.decode(errors="replace")
