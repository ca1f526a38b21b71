"""Points against nodes where a pod would share a GPU with jobs that it disturbs or that disturb it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.forecast.hints.points import LIMIT
from kgwe.forecast.interference.model import compute_speeds, describe_jobs, estimate_parts
from kgwe.forecast.interference.safety import gather_signatures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kgwe.forecast.interference.model import Coefficients
    from kgwe.forecast.interference.safety import Signature

# Half of the speed of one job is worth all points.
_FULL_LOSS: Final = 0.5


def score_sharing(
    coefficients: Coefficients,
    new: Signature,
    residents: Sequence[Signature],
    nodes: NDArray[np.intp],
    size: int,
) -> NDArray[np.float64]:
    """Return points per node of `size`: 0 for an empty GPU, less the more speed the new job and residents would lose.

    `residents[i]` runs on the GPU that the pod would get on node `nodes[i]`. A node with a resident of unknown activity
    is NaN: unknown.
    """
    if not len(residents):
        return np.zeros(size)
    parts = estimate_parts(coefficients, describe_jobs(gather_signatures([new, *residents])))
    other = np.arange(1, len(residents) + 1)
    own = np.minimum(compute_speeds(parts, np.zeros(len(residents), dtype=np.intp), other), 1.0)
    theirs = np.minimum(compute_speeds(parts, other, np.zeros(len(residents), dtype=np.intp)), 1.0)
    # Slowdowns of several residents add up for the new job; each resident loses its own.
    loss = np.bincount(nodes, (1.0 - own) + (1.0 - theirs), size)
    return np.asarray(-LIMIT * np.clip(loss / _FULL_LOSS, 0.0, 1.0), dtype=np.float64)
