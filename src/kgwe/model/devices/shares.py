"""Shares of a GPU as users write them: 0.5 is one of two equal shares.

Device plugins divide a GPU into equal shares. So a share is 1/n; 0.33 is close enough to a third.
"""

from __future__ import annotations

import math
from typing import Final

FEWEST: Final = 2
#: more are not distinguishable in thousandths of a GPU
MOST: Final = 32
#: how far a share may be from 1/n, as a part of it: two digits are enough down to a seventh
TOLERANCE: Final = 0.025
MEANING: Final = f"a share of one GPU, 1/n for n from {FEWEST} to {MOST}, such as 0.5, 0.33 or 0.25"


def shares_of_fraction(share: float) -> int:
    """The number of shares of a GPU of which one is this fraction; ValueError if there is none."""
    if not math.isfinite(share) or not 1 / (2 * MOST) < share < 1:
        raise ValueError(f"{share:g} is not {MEANING}")
    shares = min(max(round(1 / share), FEWEST), MOST)
    if abs(share * shares - 1) > TOLERANCE:
        raise ValueError(f"{share:g} is not {MEANING}")
    return shares


def shares_of_capacity(offered: int, gpus: int, label: int | None, before: int = 0) -> int:
    """The number of shares that a node makes of each GPU, from all shares it offers; 0: unknown.

    `gpus`: its GPUs, 0: unknown. `label`: the number from feature discovery, which may be stale and is 1 on nodes that
    do not share. `before`: the earlier number, because a GPU is partitioned before the kubelet offers fewer shares.
    """
    if gpus and offered % gpus == 0:
        found = offered // gpus
    else:
        found = label if label is not None and label >= FEWEST else before
    return found if FEWEST <= found <= MOST else 0
