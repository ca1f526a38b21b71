"""The idle GPU of a snapshot, split by why the next work of a mix cannot use it.

    idle = capacity of all cards, sick ones too, less what work holds

Every idle milli is, for each piece of work in the mix, usable or lost to exactly one cause (`Cause`), so the parts sum
to idle x pods of the mix, exactly. As in FGD, all cards of a node that would do are usable once one such pod fits
there.

Two things only the caller knows: what is booked for work that has not come yet (`reserved`), and how much of a cut
card's uncovered part no slice can use (`holes`, from `kgwe.sharing.slots.SlotTable.hole_milli`); all of it when not
given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.placement.fit import Verdict
from kgwe.placement.fragmentation import Cause
from kgwe.placement.gang_request import CLUSTER, GangRequest
from kgwe.placement.gang_room import GangRoom
from kgwe.placement.ladder import Ladders
from kgwe.placement.node import CARD_MILLI, Gpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from kgwe.model.domains import Tree
    from kgwe.model.mig import Placement
    from kgwe.placement.fit import Fitter
    from kgwe.placement.node import Node, Request
    from kgwe.placement.snapshot import Grant, Snapshot

    Ints = NDArray[np.int64]

_NO_GPUS: Final = Gpus()

# What holds for the node as a whole, whatever is free there.
_OF_NODE: Final = {
    Verdict.NOT_READY: Cause.NOT_READY,
    Verdict.NOT_ALLOWED: Cause.NOT_ALLOWED,
    Verdict.WRONG_MODEL: Cause.WRONG_MODEL,
    Verdict.WRONG_ARCHITECTURE: Cause.WRONG_MODEL,
    Verdict.GPU_MEMORY: Cause.WRONG_MODEL,
}
# What holds for the cards that would do.
_OF_CARDS: Final = {
    Verdict.TOO_FEW_CARDS: Cause.TOO_FEW_CARDS,
    Verdict.CARDS_TAKEN: Cause.TOO_FEW_CARDS,
    Verdict.SHARE_TAKEN: Cause.TOO_FEW_CARDS,
    Verdict.NO_SLICE: Cause.TOO_FEW_CARDS,
    Verdict.WIRING: Cause.WIRING,
    Verdict.CPU: Cause.SHORT_OF_CPU,
    Verdict.MEMORY: Cause.SHORT_OF_MEMORY,
    Verdict.PODS: Cause.TOO_MANY_PODS,
    Verdict.FITS: Cause.USABLE,
}


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle GPU by cause."""

    milli: int
    pods: int
    """Of the mix."""
    amounts: Mapping[Cause, int]
    """Cause -> milli x pods of the mix; they sum to `milli * pods`. Causes that do not occur are left out."""

    def part(self, cause: Cause) -> float:
        """Milli that are lost to the cause for the average pod of the mix."""
        return self.amounts.get(cause, 0) / self.pods


def split(
    fitter: Fitter,
    tree: Tree,
    mix: Sequence[tuple[Request | GangRequest, int]],
    *,
    reserved: Iterable[Grant] = (),
    holes: Mapping[tuple[int, int], int] | None = None,
) -> Idle:
    """Split what is idle now; `mix`: work and how often it comes, `holes`: (node, card) -> milli of a cut card."""
    free = _Free(fitter.snapshot, reserved, holes)
    ladders = Ladders(tree, fitter.snapshot)
    amounts: dict[Cause, int] = {}
    pods = 0
    for wanted, times in mix:
        for request, count, held in _pods(fitter, ladders, wanted):
            pods += count * times
            for cause, milli in _causes(fitter, free, request, held):
                amounts[cause] = amounts.get(cause, 0) + int(milli.sum()) * count * times
    return Idle(free.total, pods, {cause: amounts[cause] for cause in Cause if amounts.get(cause)})


def _pods(
    fitter: Fitter, ladders: Ladders, wanted: Request | GangRequest
) -> Iterator[tuple[Request, int, NDArray[np.bool_]]]:
    """Pods of a piece of work, how many, and per node whether a domain it is in holds all of the work."""
    if not isinstance(wanted, GangRequest):
        yield wanted, 1, np.ones(len(fitter.snapshot), np.bool_)
        return
    ladder = ladders.of(wanted.named_levels)
    room, top = GangRoom(fitter, ladder, wanted), ladder.index(wanted.required or CLUSTER)
    rung = ladder.rungs[top]
    holds = np.ones(len(rung), np.bool_)
    for number, role in enumerate(wanted.roles):
        holds &= room.capacity(number, top)[top] >= role.least
    held = np.zeros(len(fitter.snapshot), np.bool_)
    held[ladder.node] = np.repeat(holds, np.diff(rung.starts))
    for role in wanted.roles:
        yield role.request, role.replicas, held


def _causes(
    fitter: Fitter, free: _Free, request: Request, held: NDArray[np.bool_]
) -> Iterator[tuple[Cause, NDArray[np.integer]]]:
    """Causes and milli per node; together all that is idle."""
    yield Cause.UNHEALTHY, free.unhealthy
    yield Cause.RESERVED, free.reserved
    yield Cause.MIG_HOLE, free.holes
    if request.gpus == _NO_GPUS:
        yield Cause.NO_GPU_WANTED, free.rest()
        return
    when_empty = fitter.when_empty(request)
    suits = np.ones(len(held), np.bool_)
    for verdict, cause in _OF_NODE.items():
        here = when_empty == verdict
        suits &= ~here
        yield cause, np.where(here, free.rest(), 0)
    would_do = np.zeros(len(held), np.int64)
    for part, milli in free.for_pod(request.gpus):
        if part is Cause.USABLE:
            would_do = np.where(suits, milli, 0)
        else:
            yield part, np.where(suits, milli, 0)
    verdicts = fitter.verdicts(request)
    for verdict, cause in _OF_CARDS.items():
        here = verdicts == verdict
        if verdict is Verdict.FITS:
            yield Cause.WRONG_DOMAIN, np.where(here & ~held, would_do, 0)
            here &= held
        yield cause, np.where(here, would_do, 0)


class _Free:
    """What is idle, in milli per node, by what it is."""

    def __init__(
        self, snapshot: Snapshot, reserved: Iterable[Grant], holes: Mapping[tuple[int, int], int] | None
    ) -> None:
        nodes = len(snapshot)
        self._snapshot = snapshot
        self.unhealthy = np.zeros(nodes, np.int64)
        self.reserved = np.zeros(nodes, np.int64)
        self.holes = np.zeros(nodes, np.int64)
        self._uncut = snapshot.milli.sum(axis=1, dtype=np.int64)
        """Of cards that are not cut."""
        self._slices: dict[str, Ints] = {}
        """Profile -> its free slices."""
        self._sliced = np.zeros(nodes, np.int64)
        """All free slices."""
        self._uncovered = np.zeros(nodes, np.int64)
        """Of cut cards, where no slice is but one could be."""
        for number, node in enumerate(snapshot.nodes):
            self._look_at(number, node, holes)
        for grant in reserved:
            self.reserved[grant.node] += self._milli(grant)
        self.total = int((self.unhealthy + self.reserved + self.holes + self.rest()).sum())

    def _look_at(self, number: int, node: Node, holes: Mapping[tuple[int, int], int] | None) -> None:
        for card in range(node.shape.cards):
            slices = node.cut.get(card)
            if slices is None:
                self.unhealthy[number] += CARD_MILLI * (not node.usable >> card & 1)
            elif not node.healthy >> card & 1:
                self.unhealthy[number] += CARD_MILLI
            else:
                uncovered = CARD_MILLI - sum(self._slice_milli(number, card, each) for each in slices)
                hole = uncovered if holes is None else min(uncovered, max(0, holes.get((number, card), 0)))
                self.holes[number] += hole
                self._uncovered[number] += uncovered - hole
                for each in self._snapshot.free_slices.get((number, card), ()):
                    counts = self._slices.setdefault(each.profile.name, np.zeros_like(self._sliced))
                    counts[number] += self._slice_milli(number, card, each)
                    self._sliced[number] += self._slice_milli(number, card, each)

    def _slice_milli(self, number: int, card: int, placed: Placement) -> int:
        """By its place on the card, so that slices side by side sum to what they cover."""
        node = self._snapshot.nodes[number]
        geometry = node.shape.geometry
        units = max(each.occupied.stop for each in node.cut[card]) if geometry is None else geometry.units
        return placed.occupied.stop * CARD_MILLI // units - placed.start * CARD_MILLI // units

    def _milli(self, grant: Grant) -> int:
        shared = grant.share[1] if grant.share is not None else 0
        slices = sum(self._slice_milli(grant.node, card, placed) for card, placed in grant.slices)
        return grant.cards.bit_count() * CARD_MILLI + shared + slices

    def rest(self) -> Ints:
        """All that is neither sick, reserved nor a hole."""
        rest: Ints = self._uncut + self._uncovered + self._sliced
        return rest

    def for_pod(self, gpus: Gpus) -> Iterator[tuple[Cause, Ints]]:
        """The rest, by whether cards and slices would do by themselves."""
        if gpus.slices:
            would_do = self._slices.get(gpus.profile, np.zeros_like(self._sliced))
            yield Cause.NOT_CUT, self._uncut + self._uncovered
            yield Cause.OTHER_SLICES, self._sliced - would_do
        else:
            snapshot = self._snapshot
            fits = (snapshot.milli >= (gpus.milli or CARD_MILLI)) & (snapshot.share_mib >= gpus.share_mib)
            would_do = np.where(fits, snapshot.milli, 0).sum(axis=1, dtype=np.int64)
            yield Cause.CUT, self._uncovered + self._sliced
            yield Cause.REMAINDER, self._uncut - would_do
        yield Cause.USABLE, would_do
