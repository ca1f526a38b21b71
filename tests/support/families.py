"""Which kind of cluster the tests of a module need, and in which order modules are run.

Modules of one family share a cluster, so they run one after the other.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_FEATURES = re.compile(r"^FEATURES = ", re.MULTILINE)
UNIT = "unit"


@functools.cache
def family(module: str) -> str:
    """Of a test module, by its path from the root of the repository."""
    parts = Path(module).parts
    if parts[:2] != ("tests", "integration"):
        return UNIT
    if parts[2] != "scheduler":
        return "plain"
    if _FEATURES.search((_ROOT / module).read_text(encoding="utf-8")):
        return f"scheduler with the features of {parts[-1]}"
    return "scheduler"
