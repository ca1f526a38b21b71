"""How long a test waits for something that will happen. Waiting costs nothing when it does; a busy machine is slow."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 120.0
