"""The fleet as it is now: nodes, who holds what on them, and the engine over both.

A *holder* is a pod that is bound, or a seat that is reserved for one. Its key is the caller's. Free is what is left:
allocatable less what holders have. Nothing here asks whether a holder may be there: pods were bound by others, nodes
shrink and cards die under their pods, and all of it has to be counted as it is.

    fleet.set_nodes(nodes, tree)                 nodes or network changed: everything is booked again
    fleet.hold("pod-uid", Holding("n1", amounts))
    fleet.seat({"w/0": amounts, "w/1": amounts}, plan.grants)     a plan: all of it, or InvariantBroken
    fleet.rename("w/0", "pod-uid")               the seat's pod is bound there: it has the seat's cards
    fleet.drop("pod-uid")

With the stock device plugin nobody outside the node knows which cards a pod got. What a plan or an agent says is
believed; for other pods the cards are guessed once, as the engine would choose, and kept. A pod that holds more than
its node has cards gets what there is, and the rest as soon as a card comes free.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kgwe.model import amounts, domains
from kgwe.placement.engine import Engine
from kgwe.placement.fit import Fitter
from kgwe.placement.gang import GangPlanner
from kgwe.placement.node import Gpus, Request
from kgwe.placement.score import Weights
from kgwe.placement.snapshot import Grant, Snapshot, bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.domains import Tree
    from kgwe.model.mig import Placement
    from kgwe.placement.node import Node


@dataclass(frozen=True, slots=True)
class Holding:
    """What one pod, or one seat, has of a node."""

    node: str
    amounts: Mapping[str, int] = field(default_factory=dict)
    #: mask of whole cards it is known, or planned, to have; 0: not known
    cards: int = 0


@dataclass(slots=True)
class _Held:
    holding: Holding
    #: what is booked for it; empty while its node is not there
    grants: tuple[Grant, ...] = ()
    #: it holds more cards or slices than the node could give
    short: bool = False


class Fleet:
    """One live snapshot. Not thread-safe: whoever plans elsewhere takes a `Twin`."""

    def __init__(self, weights: Weights = Weights()) -> None:  # noqa: B008 - frozen
        self.weights = weights
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
        self.engine = Engine(self.snapshot, self.weights, fitter=self.fitter)
        self.gangs = GangPlanner(self.fitter, tree)
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
        for held in changed:
            self._book(held)

    def node(self, name: str) -> Node | None:
        number = self.snapshot.index.get(name)
        return None if number is None else self.snapshot.nodes[number]

    # --- holders ----------------------------------------------------------------------------------------

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def holding(self, key: str) -> Holding | None:
        """What the holder has; its cards are those booked for it now."""
        held = self._held.get(key)
        if held is None:
            return None
        cards = next((grant.cards for grant in held.grants if grant.cards), held.holding.cards)
        return replace(held.holding, cards=cards)

    def grants(self, key: str) -> tuple[Grant, ...]:
        held = self._held.get(key)
        return held.grants if held else ()

    def holders(self, node: str) -> Sequence[str]:
        return tuple(self._on.get(node, ()))

    def hold(self, key: str, holding: Holding) -> bool:
        """Count it; returns whether anything changed. What it held before is given back first."""
        before = self._held.get(key)
        if before is not None:
            same_place = before.holding.node == holding.node and before.holding.amounts == holding.amounts
            if same_place and holding.cards in (0, before.holding.cards):
                return False
            self.drop(key)
        held = self._held[key] = _Held(holding)
        self._on.setdefault(holding.node, {})[key] = None
        self._book(held)
        return True

    def drop(self, key: str) -> bool:
        """It holds nothing any more; returns whether it did."""
        held = self._held.pop(key, None)
        if held is None:
            return False
        node = held.holding.node
        del self._on[node][key]
        if not self._on[node]:
            del self._on[node]
        self._give_back(held)
        for other in self._on.get(node, ()):
            if self._held[other].short:
                self._give_back(self._held[other])
                self._book(self._held[other])
        return True

    def rename(self, key: str, new: str) -> None:
        """The same place under another key, without a moment in which it is free."""
        held = self._held.pop(key)
        self._held[new] = held
        on_node = self._on[held.holding.node]
        del on_node[key]
        on_node[new] = None

    def seat(self, seats: Mapping[str, Mapping[str, int]], grants: Sequence[Grant]) -> None:
        """Reserve a plan's grants under the keys of `seats`, in order: all, or InvariantBroken and nothing is."""
        self.snapshot.commit_all(grants)
        for (key, wanted), grant in zip(seats.items(), grants, strict=True):
            holding = Holding(self.snapshot.nodes[grant.node].name, wanted, grant.cards)
            self._held[key] = _Held(holding, (grant,))
            self._on.setdefault(holding.node, {})[key] = None

    # --- booking ----------------------------------------------------------------------------------------

    def _book(self, held: _Held) -> None:
        number = self.snapshot.index.get(held.holding.node)
        if number is None:
            return
        held.grants, held.short = self._grants_of(held.holding, number)
        for grant in held.grants:
            self.snapshot.book(grant)

    def _give_back(self, held: _Held) -> None:
        for grant in held.grants:
            self.snapshot.release(grant)
        held.grants = ()

    def _grants_of(self, holding: Holding, node: int) -> tuple[tuple[Grant, ...], bool]:
        """One grant for each kind of GPU it holds (most often one), and whether something was missing."""
        wanted = holding.amounts
        cpu, memory = wanted.get(amounts.CPU, 0), wanted.get(amounts.MEMORY, 0)
        count = wanted.get(amounts.GPU, 0)
        cards = self._cards(count, holding.cards, node)
        slices = [(name, number) for name, number in wanted.items() if name.startswith(amounts.MIG_PREFIX) and number]
        short = cards.bit_count() < count
        grants = [Grant(node, cpu, memory, cards=cards, pods=wanted.get(amounts.PODS, 1))]
        for name, number in slices:
            found = self._slices(name.removeprefix(amounts.MIG_PREFIX), number, node)
            short |= len(found) < number
            if found:
                grants.append(Grant(node, slices=found, pods=0))
        return tuple(grants), short

    def _cards(self, count: int, known: int, node: int) -> int:
        """A mask of free cards: those that are known to be its own, else the engine's choice."""
        free = int(self.snapshot.free[node])
        mine = known & free
        if mine.bit_count() == count:
            return mine
        if known and mine:
            rest = bits(free & ~mine)[: count - mine.bit_count()]
            return mine | sum(1 << card for card in rest)
        if free.bit_count() <= count:
            return free if count else 0
        return self.fitter.cards(Request(Gpus(count=count)), node) if count else 0

    def _slices(self, profile: str, number: int, node: int) -> tuple[tuple[int, Placement], ...]:
        found = [
            (card, each)
            for card in self.snapshot.nodes[node].cut
            for each in self.snapshot.free_slices.get((node, card), ())
            if _resource_name(each.profile.name) == profile
        ]
        return tuple(found[:number])

    # --- checking ---------------------------------------------------------------------------------------

    def recount(self) -> Snapshot:
        """The snapshot that booking every grant afresh gives; equal to `snapshot` unless something drifted."""
        fresh = Snapshot.of(self.snapshot.nodes)
        for held in self._held.values():
            for grant in held.grants:
                fresh.book(grant)
        return fresh


def _resource_name(profile: str) -> str:
    """As the profile is written in a resource's name."""
    return profile.replace("+", ".")


class Twin:
    """A copy of the fleet's snapshot to plan on elsewhere, kept up to date at the price of what changed."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._generation = -1
        self._seen = 0
        self.sync()

    def sync(self) -> None:
        """Catch up with the fleet; call it where nothing else touches the fleet."""
        live = self._fleet.snapshot
        if self._generation != self._fleet.generation:
            self.snapshot = Snapshot.of(live.nodes)
            self.fitter = Fitter(self.snapshot)
            self.engine = Engine(self.snapshot, self._fleet.weights, fitter=self.fitter)
            self.gangs = GangPlanner(self.fitter, self._fleet.tree)
            self._generation = self._fleet.generation
            changed: Iterable[int] = range(len(live))
        else:
            changed = live.newer_than(self._seen).tolist()
        copy_rows(live, self.snapshot, changed)
        self._seen = live.version


def copy_rows(source: Snapshot, target: Snapshot, nodes: Iterable[int]) -> None:
    """Make what is free on these nodes of `target` what it is in `source`."""
    rows = list(nodes)
    if not rows:
        return
    for name in ("free", "cpu_milli", "memory_bytes", "pods", "milli", "share_mib"):
        getattr(target, name)[rows] = getattr(source, name)[rows]
    for profile, counts in source.slices.items():
        target.slices[profile][rows] = counts[rows]
    for node in rows:
        for card in source.nodes[node].cut:
            if (node, card) in source.free_slices:
                target.free_slices[node, card] = list(source.free_slices[node, card])
    target.version += 1
    target.changed[rows] = target.version
