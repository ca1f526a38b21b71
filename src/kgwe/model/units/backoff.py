"""How long to wait before trying again."""

from __future__ import annotations

CAP_S = 300.0
JITTER = 0.1
_MAX_DOUBLINGS = 10


def delay_s(base_s: float, attempt: int, luck: float) -> float:
    """`base * 2**attempt`, plus 0 to 10 % so that retries do not march in step, at most five minutes in all.

    `attempt` counts from 0; `luck` is uniform in [0, 1). The cap holds after the jitter.
    """
    delay = base_s * float(2 ** min(max(attempt, 0), _MAX_DOUBLINGS))
    return min(delay * (1 + JITTER * luck), CAP_S)
