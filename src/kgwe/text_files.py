"""Reads text files that users name, up to a limit: a device such as /dev/zero never ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe import errors

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TextIO

_MIB: Final = 1 << 20
MAX_BYTES: Final = 16 * _MIB


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """Return the UTF-8 text of a file; Permanent if it is larger than the limit.

    OSError and UnicodeDecodeError are left to the caller, who knows what the file is for.
    """
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise _too_large(str(path), max_bytes)
    return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def read_stream(stream: TextIO, name: str, max_chars: int = MAX_BYTES) -> str:
    """Return the text of an open stream, such as standard input; Permanent if it is larger than the limit."""
    text = stream.read(max_chars + 1)
    if len(text) > max_chars:
        raise _too_large(name, max_chars)
    return text


def _too_large(name: str, limit: int) -> errors.Permanent:
    size = f"{limit // _MIB} MiB" if limit >= _MIB else f"{limit} bytes"
    return errors.Permanent(f"{name} is too large: at most {size} are read")
