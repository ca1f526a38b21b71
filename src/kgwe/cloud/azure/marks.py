"""What the tags of a scale set say about launch requests: whether one is open, and which VMs are its own.

A scale set has no idempotency token, and its VMs do not say why they were created. So a request is written to the tags
before the capacity is raised, and its VMs when they show: `open;1767225600;` and then `done;1767225600;3-6,9`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PREFIX: Final = "kgwe-request-"
_MARK: Final = re.compile(r"(open|done);(\d{1,12});([0-9,-]*)")
#: Azure allows 50 tags with values of 256 characters.
MOST_TEXT: Final = 256


@dataclass(frozen=True, slots=True)
class Mark:
    """One launch request of a scale set."""

    is_done: bool
    began_at: int
    machines: frozenset[int] = frozenset()

    def write(self) -> str:
        return f"{'done' if self.is_done else 'open'};{self.began_at};{write_ranges(self.machines)}"


def make_tag(cluster: str, request_id: str) -> str:
    return f"{_PREFIX}{cluster}-{request_id}"


def read_marks(cluster: str, tags: Mapping[str, str] | None) -> dict[str, Mark]:
    """Return request -> mark. Tags that cannot be read are left out."""
    prefix = make_tag(cluster, "")
    found = {}
    for key, text in (tags or {}).items():
        match = _MARK.fullmatch(text) if key.startswith(prefix) else None
        if match:
            found[key.removeprefix(prefix)] = Mark(match[1] == "done", int(match[2]), read_ranges(match[3]))
    return found


def write_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: 3-6,9."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def read_ranges(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            end = int(last) if last.isdecimal() else int(first)
            found.update(range(int(first), min(end, int(first) + 10_000) + 1))
    return frozenset(found)
