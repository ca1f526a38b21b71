"""The slowdown of a job that is spread over more nodes than necessary, or farther apart.

Measured (AdaptDL, OSDI'21 artifact: 4-GPU nodes, six models): leaving the node costs a lot, going further hardly
anything. A job that would fit on one node is slowed by the median ratio of step times for its number of nodes. A job
that needs several nodes anyway varies by a few percent only, so it is not slowed. Ratios below 1 count as 1, and more
nodes than measured as the largest number measured.

Nodes connected by NVLink (an NVL72 domain) count as one. The cost of leaving a leaf or a spine was not measured. On
an oversubscribed network it follows from the same data: of a ratio r, r - 1 is network time, and that part is
multiplied by the slowdown of the network compared with the best placement.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kgwe.sim.fleet.locality import Spread

#: model -> slowdown over 2, 3, 4 and more nodes
Slowdowns = dict[str, tuple[float, ...]]

#: the result of `fit` on the measurements, if they are not available
DEFAULTS: Final[Mapping[str, tuple[float, ...]]] = {
    "bert": (2.38, 1.68, 1.77),
    "cifar10": (1.21, 1.02, 1.19),
    "deepspeech2": (1.17, 1.04, 1.07),
    "imagenet": (1.22, 1.01, 1.03),
    "ncf": (2.02, 1.55, 1.64),
    "yolov3": (2.19, 1.48, 1.39),
}

FOLDER: Final = "placement-sensitivity"

_MOST_DIGIT: Final = 9


def slowdown(table: Mapping[str, tuple[float, ...]], model: str, *, found: Spread, best: Spread) -> float:
    """Return the step time divided by that of the best placement."""
    if found.boxes <= 1 or model not in table:
        return 1.0
    ratios = table[model]
    ratio = ratios[min(found.boxes - 2, len(ratios) - 1)]
    # The best placement on one node uses no network.
    base = 1.0 if best.boxes > 1 else ratio
    slower = found.contention / (best.contention if best.boxes > 1 else 1.0)
    return base * (1 + (ratio - 1) / ratio * (max(1.0, slower) - 1))


def fit_slowdowns(folder: Path) -> Slowdowns:
    """Return the slowdowns from a directory with one CSV file per model: placement, local_bsz, step_time."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise errors.NotFound(f"no measurements in {folder}; expected one CSV file per model")
    return {path.stem: _fit_model(path) for path in files}


def _fit_model(path: Path) -> tuple[float, ...]:
    steps: dict[tuple[str, str], list[float]] = defaultdict(list)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                steps[row["placement"], row["local_bsz"]].append(float(row["step_time"]))
    except (OSError, KeyError, ValueError) as exc:
        raise errors.Permanent(f"{path} is not a table of placement, local_bsz, step_time: {exc!r}") from exc
    ratios: dict[int, list[float]] = defaultdict(list)
    for (placement, batch), times in steps.items():
        cards = sum(map(int, placement))
        # Placements are digits, GPUs per node; a single digit is one node, "11" is not.
        together = steps.get((str(cards), batch)) if cards <= _MOST_DIGIT else None
        if len(placement) > 1 and together:
            ratios[len(placement)].append(statistics.mean(times) / statistics.mean(together))
    medians = [round(max(1.0, statistics.median(ratios[nodes])), 2) for nodes in sorted(ratios)]
    return tuple(medians)
