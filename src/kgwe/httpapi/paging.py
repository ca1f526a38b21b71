"""Long lists in pages: `limit` lines, and where the next page begins."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeVar

import msgspec

from kgwe.httpapi import problems

if TYPE_CHECKING:
    from collections.abc import Sequence

_T = TypeVar("_T")
DEFAULT_LIMIT: Final = 500
_MOST_OFFSET: Final = 10_000_000

Limit = Annotated[int, msgspec.Meta(ge=1, le=5000, description="Lines of a page.")]
Continue = Annotated[
    str, msgspec.Meta(max_length=64, description="Where the page begins: `continue` of the page before.")
]


class Page(NamedTuple):
    """A part of a list, and the mark of the next one; empty: it is the last."""

    lines: Sequence[object]
    next: str


def cut_page(lines: Sequence[_T], limit: int, mark: str) -> tuple[Sequence[_T], str]:
    """Return the lines of a page, and the mark of the next one."""
    start = _read_mark(mark)
    end = start + limit
    return lines[start:end], _write_mark(end) if end < len(lines) else ""


def _write_mark(offset: int) -> str:
    return base64.urlsafe_b64encode(f"o{offset}".encode()).decode().rstrip("=")


def _read_mark(mark: str) -> int:
    if not mark:
        return 0
    try:
        text = base64.b64decode(mark + "=" * (-len(mark) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (ValueError, binascii.Error):
        text = ""
    if not text.startswith("o") or not text[1:].isdigit() or int(text[1:]) > _MOST_OFFSET:
        raise problems.bad_request("continue is not a mark of this API: leave it out for the first page")
    return int(text[1:])
