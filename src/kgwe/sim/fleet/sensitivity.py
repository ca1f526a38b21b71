"""How much slower a job runs when it is spread over more nodes than it needs, or farther apart.

Measured (AdaptDL, OSDI'21 artifact: 4-card nodes, six models): leaving the node costs a lot, going further hardly any.
A job that would fit one node is slowed by the median ratio of step times, by the number of nodes it is spread over;
one that needs several nodes anyway runs within a few percent the same however it is spread, so nothing is charged.
Ratios below 1 are taken as 1, and more nodes than were measured as the most that were.

Nodes joined by NVLink (an NVL72 domain) count as one. What leaving a leaf or a spine costs was not measured; it follows
from the same figures where the network is said to be oversubscribed: of a ratio r, r - 1 is time on the network, and
that part takes as many times longer as the network is slower than in the best placement.
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

#: model -> slow-down over 2, 3, 4 and more nodes
Slowdowns = dict[str, tuple[float, ...]]

#: what `fit` makes of the measurements, for when they are not at hand
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
    """Step time over that of the best placement."""
    if found.boxes <= 1 or model not in table:
        return 1.0
    ratios = table[model]
    ratio = ratios[min(found.boxes - 2, len(ratios) - 1)]
    # In the best placement on one node nothing went over the network.
    base = 1.0 if best.boxes > 1 else ratio
    slower = found.contention / (best.contention if best.boxes > 1 else 1.0)
    return base * (1 + (ratio - 1) / ratio * (max(1.0, slower) - 1))


def fit_slowdowns(folder: Path) -> Slowdowns:
    """The table of a folder with one CSV file per model: placement, local_bsz, step_time."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise errors.NotFound(f"no measurements in {folder}: it should hold one CSV file per model")
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
        # Placements are digits, cards per node; a sum of one digit is all of them on one node, "11" is not.
        together = steps.get((str(cards), batch)) if cards <= _MOST_DIGIT else None
        if len(placement) > 1 and together:
            ratios[len(placement)].append(statistics.mean(times) / statistics.mean(together))
    medians = [round(max(1.0, statistics.median(ratios[nodes])), 2) for nodes in sorted(ratios)]
    return tuple(medians)
