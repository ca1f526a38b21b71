"""Lists of rows: filtered, sorted, cut into pages, and reduced to the fields that a client wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from kgwe.httpapi import problems
from kgwe.httpapi.paging import cut_page

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T", bound=msgspec.Struct)

Search = Annotated[
    str, msgspec.Meta(max_length=256, description="Only rows whose names, nodes or messages contain this text.")
]
Fields = Annotated[
    str, msgspec.Meta(max_length=512, description="Only these fields of each row, with commas; empty: all.")
]
Name = Annotated[str, msgspec.Meta(max_length=253)]


def select_fields(rows: Sequence[T], kind: type[T], fields: str) -> Sequence[T] | list[dict[str, Any]]:
    """Return rows with only the named fields; raise a Problem with 400 for a field that does not exist."""
    wanted = [each.strip() for each in fields.split(",") if each.strip()]
    if not wanted:
        return rows
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    for name in wanted:
        if name not in known:
            raise problems.bad_request(f"there is no field {name[:64]}; fields: {', '.join(sorted(known))}")
    return [{name: row[name] for name in wanted if name in row} for row in map(msgspec.to_builtins, rows)]


def search_rows(rows: Iterable[T], text: str, *names: str) -> list[T]:
    """Return the rows with a text in one of the fields, in any case."""
    wanted = text.casefold()
    if not wanted:
        return list(rows)
    return [row for row in rows if any(wanted in str(getattr(row, name)).casefold() for name in names)]


def sort_rows(rows: list[T], kind: type[T], by: str) -> list[T]:
    """Return the rows in the order of a field; `-field`: the largest first. Empty: as they are."""
    if not by:
        return rows
    name = by.removeprefix("-")
    field = next((each.name for each in msgspec.structs.fields(kind) if each.encode_name == name), None)
    if field is None:
        known = ", ".join(sorted(each.encode_name for each in msgspec.structs.fields(kind)))
        raise problems.bad_request(f"there is no field {name[:64]} to sort by; fields: {known}")
    return sorted(rows, key=lambda row: _sort_key(getattr(row, field)), reverse=by.startswith("-"))


def _sort_key(value: Any) -> tuple[int, Any]:
    """Rows without a value come first."""
    if value is None:
        return 0, 0
    if isinstance(value, bool | int | float):
        return 1, value
    return 2, str(value)


__all__ = ["Fields", "Name", "Search", "cut_page", "search_rows", "select_fields", "sort_rows"]
