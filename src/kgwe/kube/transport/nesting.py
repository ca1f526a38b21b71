"""JSON that is nested deeper than the decoder goes.

The API server stores up to 10,000 levels wherever a field is free-form: a pod template, the parameters of a claim.
msgspec decodes fewer levels than Python has frames (1,000), also of a part that it only skips or keeps as bytes, so one
such object would hide a whole page of a list. No field that KGWE reads is anywhere near as deep. Therefore bytes that
are too deep are decoded again without the part below `LEVELS`; everything above it is read as it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: levels that are kept: few enough to be decoded from any call depth, and more than `MOST_IN_TEMPLATE`
LEVELS: Final = 300
#: Levels that a pod template may have; Kubernetes' own has about 15. A template that was cut has more.
MOST_IN_TEMPLATE: Final = 100

# The next bracket that is not inside a string. Possessive throughout: linear time, also for bytes that are no JSON.
_BRACKET: Final = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z))*+([\[\]{}])?', re.DOTALL)
_OPENING: Final = frozenset((b"[", b"{"))


def decode(decoder: Callable[[bytes], T], data: bytes) -> T:
    """What `decoder` reads; if `data` is too deep for it, without what lies below `LEVELS`."""
    try:
        return decoder(data)
    except RecursionError:
        pass  # decoded outside of this handler: the first error is of no use to those who see a second one
    return decoder(cut_nesting(data))


def cut_nesting(data: bytes, levels: int = LEVELS) -> bytes:
    """The JSON with null in place of every object and array below `levels`."""
    kept: list[bytes] = []
    copied = depth = 0
    for found in _BRACKET.finditer(data):
        bracket = found[1]
        if bracket in _OPENING:
            depth += 1
            if depth == levels + 1:
                kept += (data[copied : found.end() - 1], b"null")
        elif bracket is not None:
            if depth == levels + 1:
                copied = found.end()
            depth -= 1
    # Cut off in the middle of what is left out: not JSON, and not to be made into JSON here.
    return data if depth > levels else b"".join((*kept, data[copied:]))
