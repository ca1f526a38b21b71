"""One requirement that no node meets: the request, the nodes that come nearest, and the fields to name in advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.placement.fleet.node import Node, Request
    from kgwe.placement.planning.fields import Fields
    from kgwe.placement.pod.fit import Fitter

#: names and values that a message lists
LISTED: Final = 4


class Case(NamedTuple):
    """What an answer is made from."""

    fitter: Fitter
    request: Request
    numbers: Sequence[int]
    """Nodes of the snapshot that pass the most rules."""
    fields: Fields
    pods: int = 1
    """Equal pods that are asked for: their GPUs may be divided in another way."""

    @property
    def nodes(self) -> list[Node]:
        return [self.fitter.snapshot.nodes[number] for number in self.numbers]


class Answer(NamedTuple):
    """The problem and what to change, both as sentences without their full stops."""

    problem: str
    fix: str
