"""How many pods of a gang every domain takes: what fits the nodes, less what the gang's own limits forbid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement import gang_split
from kgwe.placement.fit import Verdict
from kgwe.placement.node import Gpus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kgwe.placement.fit import Fitter
    from kgwe.placement.gang_request import GangRequest
    from kgwe.placement.ladder import Ladder

    Ints = NDArray[np.int64]

_NO_GPUS: Final = Gpus()


class GangRoom:
    """Capacities of the domains for the roles of one gang, as the snapshot is when they are first asked for."""

    def __init__(self, fitter: Fitter, ladder: Ladder, gang: GangRequest, model: str = "") -> None:
        """`model`: the only GPU model that roles which name none may have; empty: any."""
        self._fitter = fitter
        self._ladder = ladder
        self._gang = gang
        shapes = fitter.snapshot.shapes
        same = np.array([not model or shape.model == model for shape in shapes], np.bool_)
        self._same_model: NDArray[np.bool_] = same[fitter.snapshot.shape[ladder.node]]
        self.units = [gang_split.units(ladder, role) for role in gang.roles]
        self._known: dict[tuple[int, int], list[Ints]] = {}

    def capacity(self, role: int, rung: int) -> list[Ints]:
        """Per rung up to this one, what each domain takes of the role when the gang's domain is of this rung."""
        # Only a demand on the network makes a difference between the rungs.
        key = (role, rung if self._gang.min_network_gb_per_s else -1)
        if key not in self._known:
            top = rung if self._gang.min_network_gb_per_s else self._ladder.top
            self._known[key] = gang_split.capacities(self._ladder, self._on_nodes(role, rung), self.units[role], top)
        return self._known[key]

    def left(self, role: int, rung: int, loads: Ints) -> list[Ints]:
        """The same, now, with other roles' pods of the gang already on the nodes."""
        room = self._on_nodes(role, rung, loads)
        return gang_split.capacities(self._ladder, room, self.units[role], rung)

    def when_empty(self, role: int) -> Ints:
        """Per place, what the node's cards would hold if nothing ran there; without whole cards, what it holds now."""
        request, nodes = self._gang.roles[role].request, self._ladder.node
        if not request.gpus.count:
            return self._fitter.room(request)[nodes].astype(np.int64)
        fits = self._fitter.when_empty(request)[nodes] == Verdict.FITS
        if not request.model:
            fits &= self._same_model
        return np.where(fits, self._ladder.cards // request.gpus.count, 0)

    def _on_nodes(self, role: int, rung: int, loads: Ints | None = None) -> Ints:
        gang, ladder = self._gang, self._ladder
        request = gang.roles[role].request
        room = self._fitter.room(request)[ladder.node].astype(np.int64)
        if not request.model and request.gpus != _NO_GPUS:
            room[~self._same_model] = 0
        used = np.zeros(len(room), np.int64) if loads is None else loads
        if gang.max_pods_per_node:
            np.minimum(room, np.maximum(gang.max_pods_per_node - used, 0), out=room)
        if gang.min_network_gb_per_s:
            room[ladder.reach_gb_per_s(rung) < gang.min_network_gb_per_s] = 0
        if gang.max_nodes_per_leaf:
            room = gang_split.limit_nodes(room, ladder.leaf, gang.max_nodes_per_leaf, used > 0)
        return room
