"""Shares of a GPU, as people write them: 0.5 is one of two equal pieces.

Device plugins divide a GPU into equal pieces and know no others. So a share is 1/n; 0.33 is close enough to a third.
"""

from __future__ import annotations

import math
from typing import Final

FEWEST: Final = 2
#: as many as can be told apart in thousandths of a GPU
MOST: Final = 32
#: how far a share may be from 1/n, as a part of it: two digits are enough down to a seventh
TOLERANCE: Final = 0.025
MEANING: Final = f"a share of one GPU, 1/n for n from {FEWEST} to {MOST}, such as 0.5, 0.33 or 0.25"


def shares_of_fraction(share: float) -> int:
    """Into how many pieces a GPU is divided when one of them is this share; ValueError when it is no such share."""
    if not math.isfinite(share) or not 1 / (2 * MOST) < share < 1:
        raise ValueError(f"{share:g} is not {MEANING}")
    pieces = min(max(round(1 / share), FEWEST), MOST)
    if abs(share * pieces - 1) > TOLERANCE:
        raise ValueError(f"{share:g} is not {MEANING}")
    return pieces


def shares_of_capacity(offered: int, gpus: int, label: int | None, before: int = 0) -> int:
    """Into how many pieces a node divides each GPU that offers so many pieces in all; 0 when nobody can tell.

    `gpus` is how many it has, 0 when nobody describes them; `label` what feature discovery says, which looks now and
    then, and says 1 of nodes that do not divide; `before` what it was: a GPU is cut before the kubelet offers fewer.
    """
    if gpus and offered % gpus == 0:
        found = offered // gpus
    else:
        found = label if label is not None and label >= FEWEST else before
    return found if FEWEST <= found <= MOST else 0
