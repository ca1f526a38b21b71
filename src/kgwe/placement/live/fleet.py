"""The fleet as it is now: nodes, who holds what on them, and the engine over both.

A *holder* is a pod that is bound, or a seat that is reserved for one. Its key is the caller's. Free is what is left:
allocatable less what holders have. Nothing here asks whether a holder may be there: pods were bound by others, nodes
shrink and cards die under their pods, and all of it has to be counted as it is.

    fleet.set_nodes(nodes, tree)                 nodes or network changed: everything is booked again
    fleet.hold("pod-uid", Holding("n1", amounts))
    fleet.seat({"w/0": amounts, "w/1": amounts}, plan.grants)     a plan: all of it, or InvariantBroken
    fleet.move("w/0", "pod-uid", holding)        the seat's pod is bound: it has the seat's cards
    fleet.drop("pod-uid")

With the stock device plugin nobody outside the node chooses which cards a pod gets. What the node's kubelet says is
certain, and plans and guesses give way to it; what a plan says is believed; for other pods the cards are guessed, as
the engine would choose, and the guess is kept until somebody is known to have one of those cards. A pod that holds
more than its node has cards gets what there is, and the rest as soon as a card comes free.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from kgwe import errors
from kgwe.model.network import domains
from kgwe.model.units import amounts as resources
from kgwe.placement.fleet.node import CARD_MILLI, Gpus, Request, piece_milli
from kgwe.placement.fleet.snapshot import Debt, Grant, Snapshot, bits
from kgwe.placement.gang.plan import DomainWeights
from kgwe.placement.planning.gang_planner import GangPlanner
from kgwe.placement.pod.engine import Engine
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.mixfit_strategy import ArrivalMix
from kgwe.placement.pod.ranking import Strategy
from kgwe.placement.pod.score import Weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.gpu.mig import Placement
    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.node import Node

Slices = tuple[tuple[int, int], ...]
"""(card, start) of MIG slices."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one pod, or one seat, has of a node."""

    node: str
    amounts: Mapping[str, int] = field(default_factory=dict)
    #: mask of whole cards it is known, or planned, to have; 0: not known
    cards: int = 0
    #: slices it is known, or planned, to have
    slices: Slices = ()
    #: these are what its kubelet says, and no plan
    certain: bool = False

    @property
    def trust(self) -> int:
        """A guess gives way to a plan, and both to what is certain."""
        return (1 + self.certain) if self.cards or self.slices else 0


@dataclass(slots=True)
class _Held:
    holding: Holding
    #: what is booked for it; empty while its node is not there
    grants: tuple[Grant, ...] = ()
    #: it holds more cards or slices than the node could give
    short: bool = False
    #: cards it had when last booked
    last: int = 0


class Fleet:
    """One live snapshot. Not thread-safe: whoever plans elsewhere takes a `Shadow` of it."""

    def __init__(self, weights: Weights = Weights()) -> None:  # noqa: B008 - frozen
        self.weights = weights
        self.domain_weights = DomainWeights()
        #: of pods that name none
        self.strategy = Strategy.SCORE
        self.mix = ArrivalMix()
        self._held: dict[str, _Held] = {}
        self._on: dict[str, dict[str, None]] = {}  # node -> keys of its holders, oldest first
        #: raised whenever the set of nodes or the network changes
        self.generation = 0
        self.snapshot = Snapshot.of(())
        self.set_nodes((), domains.build((), ()))

    # --- nodes ------------------------------------------------------------------------------------------

    def set_nodes(self, nodes: Iterable[Node], tree: Tree) -> None:
        """These are the nodes and the network from now on; holders on nodes that are gone wait for their return."""
        before = self.snapshot
        self.snapshot = Snapshot.of(sorted(nodes, key=lambda node: node.name))
        self.tree = tree
        self.fitter = Fitter(self.snapshot)
        self.engine = Engine(self.snapshot, self.weights, self.strategy, fitter=self.fitter, mix=self.mix)
        self.gangs = GangPlanner(self.fitter, tree, weights=self.domain_weights)
        self.generation += 1
        kept: set[str] = set()
        if before.index == self.snapshot.index:
            # Most often one node changed and none moved: the others are booked as they were.
            same = [n for n, (old, new) in enumerate(zip(before.nodes, self.snapshot.nodes, strict=True)) if old is new]
            copy_rows(before, self.snapshot, same)
            kept = {self.snapshot.nodes[number].name for number in same}
        changed = [held for held in self._held.values() if held.holding.node not in kept]
        for held in changed:
            held.grants = ()
        for held in sorted(changed, key=lambda each: -each.holding.trust):
            self._book(held)

    def node(self, name: str) -> Node | None:
        number = self.snapshot.index.get(name)
        return None if number is None else self.snapshot.nodes[number]

    def pieces(self, name: str) -> int:
        """Into how many shares the node divides each of its cards; of no node in particular, as most do."""
        node = self.node(name)
        return (node.pieces if node is not None else 0) or self.fitter.usual_pieces

    # --- holders ----------------------------------------------------------------------------------------

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def holding(self, key: str) -> Holding | None:
        """What the holder has; its cards and slices are those booked for it now."""
        held = self._held.get(key)
        if held is None:
            return None
        cards = _cards_of(held) or held.holding.cards
        return replace(held.holding, cards=cards, slices=_slices_of(held) or held.holding.slices)

    def recorded(self, key: str) -> Holding | None:
        """What the holder was counted with."""
        held = self._held.get(key)
        return None if held is None else held.holding

    def planned(self, key: str) -> Holding:
        """What the holder was said to have when it was counted."""
        return self._held[key].holding

    def grants(self, key: str) -> tuple[Grant, ...]:
        held = self._held.get(key)
        return held.grants if held else ()

    def is_whole(self, key: str) -> bool:
        """Whether its node is there and has all the cards and slices it holds."""
        held = self._held.get(key)
        return held is not None and bool(held.grants) and not held.short

    def is_short(self, node: str) -> bool:
        """Whether its holders have more cards or slices between them than the node."""
        return any(self._held[key].short for key in self._on.get(node, ()))

    def holders(self, node: str) -> Sequence[str]:
        return tuple(self._on.get(node, ()))

    def hold(self, key: str, holding: Holding) -> bool:
        """Count it, instead of what it held before if anything; returns whether that changed anything."""
        held = self._held.get(key)
        if held is not None and _is_no_news(held, holding):
            return False
        self._exchange((key,), key, holding)
        return True

    def move(self, key: str, new: str, holding: Holding) -> None:
        """`new` has that place and `key` has none any more, without a moment in which others could take it."""
        self._exchange((key, new), new, holding)

    def drop(self, key: str) -> bool:
        """It holds nothing any more; returns whether it did."""
        if key not in self._held:
            return False
        self._fill((self._lift(key).holding.node,))
        return True

    def seat(self, seats: Mapping[str, Mapping[str, int]], grants: Sequence[Grant]) -> None:
        """Reserve a plan's grants under the keys of `seats`, in order: all, or InvariantBroken and nothing is."""
        if known := self._held.keys() & seats.keys():
            raise errors.InvariantBroken(f"{', '.join(sorted(known))} would hold two places")
        self.snapshot.commit_all(grants)
        for (key, wanted), grant in zip(seats.items(), grants, strict=True):
            slices = tuple((card, placed.start) for card, placed in grant.slices)
            cards = grant.whole_or_shared
            holding = Holding(self.snapshot.nodes[grant.node].name, wanted, cards, slices)
            self._held[key] = _Held(holding, (grant,), last=cards)
            self._on.setdefault(holding.node, {})[key] = None

    # --- booking ----------------------------------------------------------------------------------------

    def _exchange(self, old: Sequence[str], new: str, holding: Holding) -> None:
        lifted = [self._lift(key) for key in dict.fromkeys(old) if key in self._held]
        # A guess about the place goes with the place.
        last = next((each.last for each in lifted if each.holding.node == holding.node), 0)
        held = self._held[new] = _Held(holding, last=last)
        self._on.setdefault(holding.node, {})[new] = None
        self._book(held)
        self._fill((*(each.holding.node for each in lifted), holding.node))

    def _lift(self, key: str) -> _Held:
        """Take the holder away; others may be waiting for its cards (`_fill`)."""
        held = self._held.pop(key)
        node = held.holding.node
        del self._on[node][key]
        if not self._on[node]:
            del self._on[node]
        self._give_back(held)
        return held

    def _fill(self, nodes: Iterable[str]) -> None:
        """Whoever was short there gets what has come free, the oldest first; and who is known to have another card
        than is booked for him."""
        for node in dict.fromkeys(nodes):
            for key in self._on.get(node, ()):
                held = self._held[key]
                if held.short or _is_astray(held):
                    self._give_back(held)
                    self._book(held)

    def _book(self, held: _Held) -> None:
        number = self.snapshot.index.get(held.holding.node)
        if number is None:
            return
        others = self._in_the_way(held, number)
        for each in others:
            self._give_back(each)
        for each in (held, *sorted(others, key=lambda other: -other.holding.trust)):
            each.grants, each.short = self._grants_of(each, number)
            each.last = _cards_of(each)
            for grant in each.grants:
                self.snapshot.book(grant)

    def _in_the_way(self, held: _Held, number: int) -> list[_Held]:
        """Holders who have a card or slice that this one has with more certainty."""
        known = held.holding
        cards = known.cards & self.snapshot.nodes[number].usable & ~int(self.snapshot.free[number])
        if known.amounts.get(resources.SHARED):
            cards &= ~self._with_room(number)
        free = {(card, each.start) for card, each in self._free_slices(number)} if known.slices else set()
        slices = set(known.slices) - free
        if not cards and not slices:
            return []
        others = [self._held[key] for key in self._on.get(known.node, ())]
        return [
            other
            for other in others
            if other is not held
            and other.holding.trust < known.trust
            and any(
                grant.whole_or_shared & cards or any((card, each.start) in slices for card, each in grant.slices)
                for grant in other.grants
            )
        ]

    def _give_back(self, held: _Held) -> None:
        for grant in held.grants:
            self.snapshot.release(grant)
        held.grants = ()

    def _grants_of(self, held: _Held, node: int) -> tuple[tuple[Grant, ...], bool]:
        """One grant for each kind of GPU it holds (most often one), and whether something was missing."""
        holding = held.holding
        wanted = holding.amounts
        # Amounts from manifests are cut where they are read; those of plans stored long ago may not be.
        cpu, memory = (min(wanted.get(name, 0), resources.MOST) for name in (resources.CPU, resources.MEMORY))
        count = wanted.get(resources.GPU, 0)
        cards = self._cards(held, count, node)
        slices = [(name, number) for name, number in wanted.items() if name.startswith(resources.MIG_PREFIX) and number]
        grants = [Grant(node, cpu, memory, cards=cards, pods=wanted.get(resources.PODS, 1))]
        shares = min(wanted.get(resources.SHARED, 0), CARD_MILLI)
        while shares and (share := self._share(held, node, grants)) is not None:
            shares -= 1
            if grants[0].whole_or_shared:
                grants.append(share)
            else:
                grants[0] = replace(grants[0], cards=share.cards, share=share.share)
        missing: list[tuple[str, int]] = []
        for name, number in slices:
            profile = name.removeprefix(resources.MIG_PREFIX)
            found = self._slices(profile, number, node, holding.slices)
            if len(found) < number:
                missing.append((profile, number - len(found)))
            if found:
                grants.append(Grant(node, slices=found, pods=0))
        # A share that is known to be of one card waits for that card, whatever else comes free.
        owed = Debt(count - cards.bit_count(), 0 if holding.certain else shares, tuple(missing))
        grants[0] = replace(grants[0], owed=owed)
        return tuple(grants), bool(owed) or bool(shares)

    def _cards(self, held: _Held, count: int, node: int) -> int:
        """A mask of free cards: those that are known to be its own, else the engine's choice."""
        free, holding = int(self.snapshot.free[node]), held.holding
        if free.bit_count() <= count:
            return free
        mine = bits((holding.cards or held.last) & free)[:count]
        if not mine:
            return self.fitter.cards(Request(Gpus(count=count)), node) if count else 0
        own = sum(1 << card for card in mine)
        if len(mine) == count:
            return own
        # Others may be known to have cards that are not booked for them yet.
        rest = bits(free & ~own & ~self._known_to_others(held))[: count - len(mine)]
        return own | sum(1 << card for card in rest)

    def _share(self, held: _Held, node: int, mine: Sequence[Grant]) -> Grant | None:
        """One more share of the node's size, beside what it has: of the card that is known to be its own, else of the
        fullest with room. Where cards are no longer divided, its own card is nobody else's: it is booked whole."""
        pieces, holding = self.snapshot.nodes[node].pieces, held.holding
        left = self.snapshot.milli[node].copy()
        for grant in mine:
            left[bits(grant.cards)] = 0
            if grant.share is not None:
                left[grant.share[0]] -= grant.share[1]
        known = holding.cards or held.last
        milli = piece_milli(pieces) if pieces else CARD_MILLI
        with_room: list[int] = np.flatnonzero(left >= milli).tolist()
        if holding.certain or not pieces:
            # On another card it would keep away those who could have that.
            with_room = [card for card in with_room if known >> card & 1]
        if not with_room:
            return None
        card = min(with_room, key=lambda card: (not known >> card & 1, int(left[card]), card))
        return Grant(node, share=(card, milli, 0), pods=0) if pieces else Grant(node, cards=1 << card, pods=0)

    def _with_room(self, node: int) -> int:
        """Mask of the cards that have another share to give."""
        pieces = self.snapshot.nodes[node].pieces
        least = piece_milli(pieces) if pieces else CARD_MILLI
        return sum(1 << card for card in np.flatnonzero(self.snapshot.milli[node] >= least).tolist())

    def _known_to_others(self, held: _Held) -> int:
        mask = 0
        for key in self._on.get(held.holding.node, ()):
            other = self._held[key]
            if other is not held:
                mask |= other.holding.cards
        return mask

    def _slices(self, profile: str, number: int, node: int, known: Slices) -> tuple[tuple[int, Placement], ...]:
        found = [(card, each) for card, each in self._free_slices(node) if _resource_name(each.profile.name) == profile]
        found.sort(key=lambda each: (each[0], each[1].start) not in known)
        return tuple(found[:number])

    def _free_slices(self, node: int) -> list[tuple[int, Placement]]:
        cut = self.snapshot.nodes[node].cut
        return [(card, each) for card in cut for each in self.snapshot.free_slices.get((node, card), ())]

    # --- checking ---------------------------------------------------------------------------------------

    def recount(self) -> Snapshot:
        """The snapshot that booking every grant afresh gives; equal to `snapshot` unless something drifted."""
        fresh = Snapshot.of(self.snapshot.nodes)
        for held in self._held.values():
            for grant in held.grants:
                fresh.book(grant)
        return fresh


def _is_no_news(held: _Held, new: Holding) -> bool:
    """Whether all that `new` says is so already; not knowing the cards is no news."""
    told = held.holding
    if (told.node, told.amounts, told.certain) != (new.node, new.amounts, new.certain):
        return False
    if new.cards in (0, told.cards) and new.slices in ((), told.slices):
        return True
    return new.cards in (0, held.last) and new.slices in ((), _slices_of(held))


def _is_astray(held: _Held) -> bool:
    return held.holding.certain and bool(held.holding.cards & ~_cards_of(held))


def _cards_of(held: _Held) -> int:
    mask = 0
    for grant in held.grants:
        mask |= grant.whole_or_shared
    return mask


def _slices_of(held: _Held) -> Slices:
    return tuple((card, placed.start) for grant in held.grants for card, placed in grant.slices)


def _resource_name(profile: str) -> str:
    """As the profile is written in a resource's name."""
    return profile.replace("+", ".")


def copy_rows(source: Snapshot, target: Snapshot, nodes: Iterable[int]) -> None:
    """Make what is free on these nodes of `target` what it is in `source`."""
    rows = list(nodes)
    if not rows:
        return
    for name in ("free", "cpu_milli", "memory_bytes", "pods", "owed", "owed_shares"):
        getattr(target, name)[rows] = getattr(source, name)[rows]
    # Another node may have got wider, or lost the only slices of a profile: no concern of these rows.
    width = min(source.milli.shape[1], target.milli.shape[1])
    for name in ("milli", "share_mib"):
        getattr(target, name)[rows, :width] = getattr(source, name)[rows, :width]
    for profile, counts in source.slices.items():
        if profile in target.slices:
            target.slices[profile][rows] = counts[rows]
    for profile in {*source.owed_slices, *target.owed_slices}:
        none = np.zeros(len(target), np.int32)
        target.owed_slices.setdefault(profile, none)[rows] = source.owed_slices.get(profile, none)[rows]
    for node in rows:
        for card in source.nodes[node].cut:
            if (node, card) in source.free_slices:
                target.free_slices[node, card] = list(source.free_slices[node, card])
    target.version += 1
    target.changed[rows] = target.version
