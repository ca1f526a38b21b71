"""Phrases of messages for people: numbers with their nouns, amounts in the usual units, short lists of names."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_CLOSE: Final = 0.7


def format_count(number: float, noun: str, plural: str = "") -> str:
    """`1 pod`, `2 pods`, `4 leaves`; `plural` where it is not the noun with an s."""
    return f"{format_number(number)} {noun if number == 1 else plural or f'{noun}s'}"


def format_number(number: float) -> str:
    """Without a trailing `.0`: `8`, `0.5`, `12.25`."""
    return f"{round(number, 2):g}" if number < 1e5 else f"{number:.0f}"  # noqa: PLR2004 - :g has six digits


def format_bytes(amount: int) -> str:
    """In GiB: `32 GiB`, `1.5 GiB`; in MiB below one GiB."""
    if amount < _GIB:
        return f"{format_number(amount / _MIB)} MiB"
    return f"{format_number(round(amount / _GIB, 1))} GiB"


def format_mib(amount: int) -> str:
    """An amount in MiB, in the same units."""
    return format_bytes(amount * _MIB)


def format_cores(cpu_milli: int) -> str:
    """`1 core`, `64 cores`, `0.5 cores`."""
    return format_count(cpu_milli / 1000, "core")


def format_duration(seconds: float) -> str:
    """The two largest units, as kubectl writes it: `24h`, `1h30m`, `45s`."""
    left = round(seconds)
    parts = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        if unit == "d" and left < 2 * size:
            continue
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return "".join(parts[:2]) or "0s"


def list_names(names: Sequence[str], most: int = 3) -> str:
    """`h1, h2`; of more than `most` the first ones and how many more: `h1, h2, h3 +7`."""
    more = f" +{len(names) - most}" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def join_words(words: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(words) < 2:  # noqa: PLR2004 - a pair
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def pluralize(level: str) -> str:
    """The plural of a topology level: `leaves`, `spines`, `NVLink domains`."""
    return _PLURALS.get(level, f"{level}s")


_PLURALS: Final = {"leaf": "leaves", "nvlink": "NVLink domains", "switch": "switches"}


def find_similar(name: str, known: Iterable[str]) -> str:
    """The known name, or the word of one, that a misspelt name was probably meant to be; empty if none is near."""
    words = {word for each in known for word in (each, *each.replace("_", "-").replace(" ", "-").split("-")) if word}
    ratios = {word: difflib.SequenceMatcher(None, name.lower(), word.lower()).ratio() for word in sorted(words)}
    best = max(ratios, key=lambda word: ratios[word], default="")
    return best if best and ratios[best] >= _CLOSE else ""


def end_sentence(text: str) -> str:
    """The text with a full stop, unless it ends with one or with a question mark; an empty text stays empty."""
    return text if not text or text.endswith((".", "?")) else f"{text}."


def shorten(text: str, most: int) -> str:
    """The text, cut to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
