"""Text that a terminal shows and does not obey.

Users write names, labels and annotations, and KGWE repeats them in messages. Control characters there would clear the
screen, set the title or recolor the lines of another user's terminal, and bidirectional marks reorder what it shows.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_LAYOUT: Final = "\n\t"
_LAST_OF_BMP: Final = 0xFFFF


def escape_text(text: str) -> str:
    r"""Return the text with invisible characters (control, bidirectional) escaped, as in `\u202e`. Lines stay lines.

    Escaped text of JSON is JSON with the same values. Escaping twice changes nothing.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in _LAYOUT or _is_space(each) else _escape(each) for each in text)


def escape_line(text: str) -> str:
    r"""Return the same as one line, for a value inside a sentence: a line break is `\u000a`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or _is_space(each) else _escape(each) for each in text)


def _is_space(each: str) -> bool:
    """Whether it is a space of any width; Python counts only the usual one as printable."""
    return unicodedata.category(each) == "Zs"


def _escape(each: str) -> str:
    code = ord(each)
    if code <= _LAST_OF_BMP:
        return f"\\u{code:04x}"
    # As JSON writes it: a pair of surrogates.
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
