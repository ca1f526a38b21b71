"""Placement hints over the live fleet: nodes that keep a communicating workload together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.forecast import coefficients
from kgwe.forecast.hints.communication import find_family, find_slowdown, score_communication
from kgwe.forecast.hints.points import combine_hints
from kgwe.proto import optimizer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.model.usage.description import WorkloadDescription
    from kgwe.placement.live.fleet import LiveFleet


class PlacementHints:
    """Answers GetPlacement. A workload whose sensitivity is not known gets no hints."""

    def __init__(self, fleet: Callable[[], LiveFleet]) -> None:
        self._fleet = fleet

    def find(self, workload: WorkloadDescription, names: Sequence[str]) -> list[pb.NodeHint]:
        """Return the nodes with points, of those named or of all."""
        text = " ".join((workload.image, *workload.command, workload.name))
        gpus = round(workload.gpus)
        slowdown = find_slowdown(coefficients.load().communication, find_family(text), gpus)
        snapshot = self._fleet().snapshot
        room = np.bitwise_count(snapshot.free).astype(np.int64)
        hints = combine_hints(
            len(room), {"communication": score_communication(slowdown, gpus, np.zeros_like(room), room)}
        )
        wanted = set(names)
        return [
            pb.NodeHint(node=node.name, points=float(hints.points[number]), reasoning=hints.explain(number))
            for number, node in enumerate(snapshot.nodes)
            if hints.points[number] and (not wanted or node.name in wanted)
        ]
