"""Where the replicas of each service are, and which nodes one more avoids first, so that one failure hits few."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from kgwe.cluster.workload import replica_uid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kgwe.model.network.domains import Tree
    from kgwe.placement.live.ledger import Ledger

# Each try is a plan of its own. After these, a replica goes wherever there is room.
_TRIES: Final = 3


class Siblings:
    """Services that have a replica waiting, and the nodes of their other replicas."""

    def __init__(self) -> None:
        self._nodes: dict[str, Counter[str]] = {}

    @classmethod
    def read(cls, services: Iterable[str], ledger: Ledger) -> Self:
        """The places of all replicas of these services; empty names are none."""
        found = cls()
        wanted = {service for service in services if service}
        for owner in ledger.owners() if wanted else ():
            if (service := replica_uid.object_uid(owner)) in wanted:
                found.add(service, (seat.node for seat in ledger.reserved_seats(owner).values()))
        return found

    def add(self, service: str, nodes: Iterable[str]) -> None:
        """One more replica has its place."""
        if service:
            self._nodes.setdefault(service, Counter()).update(set(nodes))

    def list_avoided(self, service: str, tree: Tree) -> Iterator[frozenset[str]]:
        """Nodes that one more replica avoids: first all but those farthest from the others, then fewer.

        Fewest replicas in the widest domain count most, then in the next, at last on the node.
        """
        taken = self._nodes.get(service)
        if not taken or not tree.nodes:
            return
        here = np.array([taken.get(name, 0) for name in tree.nodes], np.int64)
        if not here.any():
            return
        columns = [tree.levels[level].sums(here)[tree.domain_of[level]] for level in reversed(range(len(tree.levels)))]
        _, rank = np.unique(np.stack([*columns, here], axis=1), axis=0, return_inverse=True)
        rank = rank.reshape(-1)
        for worst in range(min(int(rank.max()), _TRIES)):
            yield frozenset(tree.nodes[number] for number in np.flatnonzero(rank > worst).tolist())
