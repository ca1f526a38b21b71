"""How many examples a property is tried with."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_USUAL = 50  # of the default profile


def examples(count: int, **more: Any) -> settings:
    """So many in `make test`; as many times more in `make search` as its profile draws for other properties."""
    return settings(max_examples=max(1, count * settings().max_examples // _USUAL), **more)
