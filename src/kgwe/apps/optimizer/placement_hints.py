"""Placement hints over the live fleet: what is forecast about a workload on each node.

communication    nodes that keep a workload of several pods together
interference     shared GPUs whose present pods would slow the workload down, or be slowed down by it
domain history   network domains in which runs fail more often, or take longer, than elsewhere
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.forecast import coefficients
from kgwe.forecast.hints.communication import find_family, find_slowdown, score_communication
from kgwe.forecast.hints.points import LIMIT, combine_hints
from kgwe.forecast.hints.sharing import score_sharing
from kgwe.forecast.interference.safety import Signature
from kgwe.model.network.domains import nearest_domain
from kgwe.proto import optimizer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.apps.optimizer.waste.needs import UsageHistory
    from kgwe.forecast.domains import DomainHistory
    from kgwe.model.usage.description import WorkloadDescription
    from kgwe.placement.live.fleet import LiveFleet

    Floats = NDArray[np.float64]

_MILLI: Final = 1000


class PlacementHints:
    """Answers GetPlacement. What is not known gives no points."""

    def __init__(
        self,
        fleet: Callable[[], LiveFleet],
        *,
        list_pods: Callable[[], Iterable[PodFacts]] = lambda: (),
        histories: Callable[[str], UsageHistory] | None = None,
        domains: Callable[[], Mapping[str, DomainHistory]] = dict,
    ) -> None:
        """`histories`: fingerprint -> its GPU use; `domains`: network domain -> how well runs went there."""
        self._fleet = fleet
        self._list_pods = list_pods
        self._histories = histories
        self._domains = domains

    def find(self, workload: WorkloadDescription, names: Sequence[str]) -> list[pb.NodeHint]:
        """Return the nodes with points, of those named or of all."""
        fleet = self._fleet()
        parts = {
            "communication": self._score_communication(workload, fleet),
            "interference": self._score_sharing(workload, fleet),
            "domain history": self._score_domains(fleet),
        }
        hints = combine_hints(
            len(fleet.snapshot), {name: points for name, points in parts.items() if points is not None}
        )
        wanted = set(names)
        return [
            pb.NodeHint(node=node.name, points=float(hints.points[number]), reasoning=hints.explain(number))
            for number, node in enumerate(fleet.snapshot.nodes)
            if hints.points[number] and (not wanted or node.name in wanted)
        ]

    def _score_communication(self, workload: WorkloadDescription, fleet: LiveFleet) -> Floats | None:
        if workload.pods <= 1:
            return None  # one pod is always together
        text = " ".join((workload.image, *workload.command, workload.name))
        gpus = round(workload.gpus)
        slowdown = find_slowdown(coefficients.load().communication, find_family(text), gpus)
        room = np.bitwise_count(fleet.snapshot.free).astype(np.int64)
        return score_communication(slowdown, gpus, np.zeros_like(room), room)

    def _score_sharing(self, workload: WorkloadDescription, fleet: LiveFleet) -> Floats | None:
        """Return points for the shared GPU of each node that the pod would get: the fullest one with room."""
        if workload.mig_profile or not 0 < workload.milli_gpus < _MILLI:
            return None
        mine = self._find_signature(workload.make_fingerprint().key)
        if mine.activity is None:
            return None
        free = fleet.snapshot.milli
        fits = (free >= workload.milli_gpus) & (free < _MILLI)
        # Numbers of GPUs; a node without a GPU in use has no residents.
        chosen = np.where(fits, free, _MILLI).argmin(axis=1) if free.size else np.zeros(len(free), dtype=np.intp)
        residents: list[Signature] = []
        nodes: list[int] = []
        for facts in self._list_pods():
            for grant in fleet.grants(facts.uid):
                if grant.share is None:
                    continue
                gpu = grant.share[0]
                if chosen[grant.node] == gpu and fits[grant.node, gpu]:
                    residents.append(self._find_signature(facts.fingerprint.key))
                    nodes.append(grant.node)
        return score_sharing(
            coefficients.load().interference, mine, residents, np.array(nodes, dtype=np.intp), len(fleet.snapshot)
        )

    def _find_signature(self, fingerprint: str) -> Signature:
        """Return what a fingerprint did so far; unknown without history."""
        peaks = self._histories(fingerprint).peaks if self._histories is not None else ()
        known = [each.activity_mean for each in peaks if each.activity_mean is not None]
        return Signature(float(np.mean(known)) if known else None)

    def _score_domains(self, fleet: LiveFleet) -> Floats | None:
        rated = self._domains()
        if not rated:
            return None
        points = np.zeros(len(fleet.snapshot))
        for number, node in enumerate(fleet.snapshot.nodes):
            found = rated.get(nearest_domain(fleet.tree, node.name))
            if found is not None:
                points[number] = LIMIT * (found.score - 1.0)
        return points
