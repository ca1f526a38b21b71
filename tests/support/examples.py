"""How many examples a property is tried with."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_USUAL = 50  # of the thorough profile


def examples(count: int, **more: Any) -> settings:
    """So many in `make test-slow`; in other runs more or fewer, as their profile draws for other properties."""
    return settings(max_examples=max(1, count * settings().max_examples // _USUAL), **more)
