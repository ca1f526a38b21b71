"""Which of many due actions come first: in turns of namespaces, so that many of one tenant delay no other's."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


def take_in_turns(due: Iterable[T], namespace_of: Callable[[T], str], most: int, look: int) -> list[T]:
    """Return at most `most`. `look`: a number that rises; what fails again and again does not keep others waiting."""
    by_namespace: dict[str, list[T]] = {}
    for each in due:
        by_namespace.setdefault(namespace_of(each), []).append(each)
    lists = [_rotate(found, look) for _, found in sorted(by_namespace.items())]
    turns = itertools.zip_longest(*_rotate(lists, look))
    return list(itertools.islice((each for turn in turns for each in turn if each is not None), most))


def _rotate(found: list[T], by: int) -> list[T]:
    start = by % len(found) if found else 0
    return found[start:] + found[:start]
