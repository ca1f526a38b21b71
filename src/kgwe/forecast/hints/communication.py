"""Points for nodes that keep the pods of a communicating workload together.

Some models run at half speed when their GPUs are on two nodes, others do not notice. The slowdown of a family was
measured (AdaptDL). A node gets points for the share of the workload that it can hold: pods that are already there and
GPUs that are free. A workload that does not communicate, or whose family is unknown, gets none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.forecast.hints.points import LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

# Words of images, commands and names -> family. The first match counts.
_FAMILIES: Final = (
    ("bert", "bert|roberta|albert|electra"),
    ("yolov3", "yolo|yolov3|yolov5|yolov8|darknet"),
    ("ncf", "ncf|neumf|dlrm|recommendation"),
    ("deepspeech2", "deepspeech|deepspeech2|asr"),
    ("cifar10", "cifar|cifar10"),
    ("imagenet", "imagenet|resnet|resnet18|resnet50|efficientnet"),
)
# A slowdown of a quarter gives all points: a hint is small beside the other parts of a score.
_FULL_SLOWDOWN: Final = 0.25


def find_family(text: str) -> str | None:
    """Return the measured family that a text (image, command, name) mentions; None if there is none."""
    for family, words in _FAMILIES:
        if re.search(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", text.lower()):
            return family
    return None


def find_slowdown(table: Mapping[str, Mapping[str, float]], family: str | None, gpus: int) -> float:
    """Return the step time of a family spread over nodes relative to one node; NaN if it is not known."""
    ratios = table.get(family or "")
    if not ratios or gpus < 1:
        return float("nan")
    if gpus == 1:
        return 1.0
    measured = [ratio for name, ratio in ratios.items() if int(name.partition("/")[0]) == min(gpus, 4)]
    found = measured or list(ratios.values())
    return float(np.mean(found))


def score_communication(
    slowdown: float, gpus: int, peers: NDArray[np.integer], room: NDArray[np.integer]
) -> NDArray[np.float64]:
    """Return points per node: most where all GPUs of the workload can be on the node, least where only one can.

    `peers`: GPUs of the workload that are already on the node; `room`: GPUs that are free there.
    """
    if np.isnan(slowdown) or gpus <= 1 or slowdown <= 1.0:
        return np.zeros(len(peers))
    strength = min((slowdown - 1.0) / _FULL_SLOWDOWN, 1.0)
    held = np.clip(np.minimum(peers + room, gpus), 0, gpus) / gpus
    least = 1.0 / gpus
    share = np.clip((held - least) / (1.0 - least), 0.0, 1.0)
    return np.asarray(LIMIT * strength * (2.0 * share - 1.0), dtype=np.float64)
