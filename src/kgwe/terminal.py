"""Output of commands. All of it passes here, so that no name or message of a user controls the terminal."""

from __future__ import annotations

import sys

from kgwe.visible_text import escape_text


def write(text: str) -> None:
    """Write to standard output."""
    sys.stdout.write(escape_text(text))


def write_error(text: str) -> None:
    """Write to standard error."""
    sys.stderr.write(escape_text(text))
