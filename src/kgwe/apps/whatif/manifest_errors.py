"""Mistakes in manifests, in words: unknown fields, and values of the wrong type."""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any, Final

from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_WRONG_TYPE: Final = re.compile(r"Expected `([^`]+)`, got `([^`]+)`(?: - at `\$\.?([^`]*)`)?")
_MISSING: Final = re.compile(r"Object missing required field `([^`]+)`(?: - at `\$\.?([^`]*)`)?")
_STEP: Final = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_NOUNS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "nothing",
}


def describe_error(text: str, document: Mapping[str, Any]) -> str:
    """Return an error of msgspec in words: the path of the field, what was expected and what was found."""
    if missing := _MISSING.fullmatch(text):
        name, path = missing.groups()
        return f"{path}.{name} is required" if path else f"{name} is required"
    if wrong := _WRONG_TYPE.fullmatch(text):
        expected, got, path = wrong.groups()
        kinds = [_NOUNS.get(kind, kind) for kind in expected.split(" | ") if kind != "null"]
        found = _find_value(document, path or "") if got in ("str", "int", "float", "bool") else None
        return f"{path}: expected {' or '.join(kinds)}, found {found or _NOUNS.get(got, got)}"
    return text


def _find_value(document: Mapping[str, Any], path: str) -> str | None:
    """Return the value at a path, as JSON; None if the path does not say exactly where."""
    value: Any = document
    try:
        for number, name in _STEP.findall(path):
            value = value[int(number)] if number else value[name]
        return json.dumps(value, ensure_ascii=False)
    except (LookupError, TypeError, ValueError):
        return None


def find_unknown_field(value: Any, as_type: type[Any], path: str) -> str | None:
    """Return what is wrong with the first field that the type does not have, with the field that was probably meant."""
    for where, name, known in _list_unknown(value, inspect.type_info(as_type), path):
        similar = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {similar[0]}?" if similar else f"known fields: {', '.join(sorted(known))}"
        return f"unknown field {where}.{name}; {hint}"
    return None


def _list_unknown(value: Any, info: inspect.Type, path: str) -> Iterator[tuple[str, str, list[str]]]:
    if isinstance(info, inspect.Metadata):
        yield from _list_unknown(value, info.type, path)
    elif isinstance(info, inspect.UnionType):
        for each in info.types:
            yield from _list_unknown(value, each, path)
    elif isinstance(info, inspect.CollectionType) and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _list_unknown(item, info.item_type, f"{path}[{number}]")
    elif isinstance(info, inspect.StructType) and isinstance(value, dict):
        known = {field.encode_name: field for field in info.fields}
        for name, inner in value.items():
            if name in known:
                yield from _list_unknown(inner, known[name].type, f"{path}.{name}")
            else:
                yield path, str(name), list(known)
