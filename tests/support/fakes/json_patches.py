"""JSON merge patches (RFC 7386), JSON patches (RFC 6902), and the conditions of strategic merge patches."""

from __future__ import annotations

import copy
from typing import Any


def merge(old: Any, patch: Any) -> Any:
    """`old` with the fields of `patch`; None removes a field."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    made = copy.deepcopy(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merge(made.get(key), value)
    return made


def merge_strategic(old: Any, patch: Any) -> Any:
    """As `merge`, but conditions are merged by their type. Other lists are replaced."""
    made = merge(old, patch)
    conditions = (patch.get("status") or {}).get("conditions")
    if conditions is not None:
        known = {each["type"]: each for each in ((old.get("status") or {}).get("conditions") or ())}
        for each in conditions:
            known[each["type"]] = merge(known.get(each["type"]), each)
        made["status"]["conditions"] = list(known.values())
    return made


class PatchFailed(ValueError):
    """A `test` operation found another value."""


def apply(old: Any, operations: list[dict[str, Any]]) -> Any:
    made = copy.deepcopy(old)
    for operation in operations:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place = made
        for part in way:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list):
            _change_list(place, last, operation)
        else:
            _change_dict(place, last, operation)
    return made


def _change_dict(place: dict[str, Any], key: str, operation: dict[str, Any]) -> None:
    if operation["op"] == "test":
        if place.get(key) != operation["value"]:
            raise PatchFailed(operation["path"])
    elif operation["op"] == "remove":
        del place[key]
    else:
        place[key] = copy.deepcopy(operation["value"])


def _change_list(place: list[Any], key: str, operation: dict[str, Any]) -> None:
    index = len(place) if key == "-" else int(key)
    if operation["op"] == "test":
        if place[index] != operation["value"]:
            raise PatchFailed(operation["path"])
    elif operation["op"] == "remove":
        del place[index]
    elif operation["op"] == "add":
        place.insert(index, copy.deepcopy(operation["value"]))
    else:
        place[index] = copy.deepcopy(operation["value"])
