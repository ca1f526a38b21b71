"""The live fleet: nodes, the devices that pods and seats hold on them, and the engine over both.

A *holder* is a bound pod, or a seat reserved for one. The caller chooses its key. Free is what is left: allocatable
less what holders have. Nothing here checks whether a holder may be there: other schedulers bind pods, nodes shrink and
GPUs fail under their pods, and all of it is counted as it is.

    fleet.set_nodes(nodes, tree)                 nodes or network changed: everything is booked again
    fleet.hold("pod-uid", Holding("n1", amounts))
    fleet.reserve_plan({"w/0": amounts, "w/1": amounts}, plan.grants)     all of it, or InvariantBroken
    fleet.move("w/0", "pod-uid", holding)        the seat's pod is bound: it has the seat's GPUs
    fleet.drop("pod-uid")

With the stock device plugin only the node chooses which GPUs a pod gets. What the kubelet reports is observed and
overrides plans and guesses; a plan overrides guesses. For other pods the GPUs are guessed as the engine would choose,
and the guess stays until another pod is known to have one of those GPUs. A pod that holds more than its node has gets
what there is, and the rest as soon as a GPU comes free.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.model.network import domains
from kgwe.model.units import amounts as resources
from kgwe.placement.fleet.node import Gpus, Request, share_milli
from kgwe.placement.fleet.snapshot import Grant, Snapshot
from kgwe.placement.gang.plan import DomainWeights
from kgwe.placement.live.device_choice import DeviceChooser
from kgwe.placement.live.holding import Holder, Holding
from kgwe.placement.live.snapshot_copy import copy_rows
from kgwe.placement.planning.gang_planner import GangPlanner
from kgwe.placement.pod.engine import Engine
from kgwe.placement.pod.fit import Fitter
from kgwe.placement.pod.mixfit_strategy import ArrivalMix
from kgwe.placement.pod.ranking import Strategy
from kgwe.placement.pod.score import Weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.node import Node


class LiveFleet:
    """One live snapshot. Not thread-safe: other threads plan on a `ScratchFleet` of it."""

    def __init__(self, weights: Weights = Weights()) -> None:  # noqa: B008 - frozen
        self.weights = weights
        self.domain_weights = DomainWeights()
        #: of pods that name none
        self.strategy = Strategy.SCORE
        self.mix = ArrivalMix(self._running_requests)
        self._holders: dict[str, Holder] = {}
        self._keys_on: dict[str, dict[str, None]] = {}  # node -> keys of its holders, oldest first
        #: raised whenever the set of nodes or the network changes
        self.generation = 0
        self.snapshot = Snapshot.from_nodes(())
        self.set_nodes((), domains.build_tree((), ()))

    # --- nodes ------------------------------------------------------------------------------------------

    def set_nodes(self, nodes: Iterable[Node], tree: Tree) -> None:
        """Replace the nodes and the network; holders on missing nodes wait for their return."""
        before = self.snapshot
        self.snapshot = Snapshot.from_nodes(sorted(nodes, key=lambda node: node.name))
        self.tree = tree
        self.fitter = Fitter(self.snapshot)
        self._chooser = DeviceChooser(self.fitter)
        self.engine = Engine(self.snapshot, self.weights, self.strategy, fitter=self.fitter, mix=self.mix)
        self.gangs = GangPlanner(self.fitter, tree, weights=self.domain_weights)
        self.generation += 1
        kept: set[str] = set()
        if before.index == self.snapshot.index:
            # Most often one node changed: the bookings of the others are copied.
            same = [n for n, (old, new) in enumerate(zip(before.nodes, self.snapshot.nodes, strict=True)) if old is new]
            copy_rows(before, self.snapshot, same)
            kept = {self.snapshot.nodes[number].name for number in same}
        changed = [holder for holder in self._holders.values() if holder.holding.node not in kept]
        for holder in changed:
            holder.grants = ()
        for holder in sorted(changed, key=lambda each: -each.holding.trust):
            self._book(holder)

    def configure(self, weights: Weights, domain_weights: DomainWeights, strategy: Strategy) -> None:
        """Set the weights and the default strategy; they apply from the next `set_nodes` on."""
        self.weights, self.domain_weights, self.strategy = weights, domain_weights, strategy

    def node(self, name: str) -> Node | None:
        number = self.snapshot.index.get(name)
        return None if number is None else self.snapshot.nodes[number]

    def shares_per_gpu(self, name: str) -> int:
        """How many shares the node makes of each GPU; for an unknown node, the usual number."""
        node = self.node(name)
        return (node.shares_per_gpu if node is not None else 0) or self.fitter.usual_shares

    def _running_requests(self) -> list[Request]:
        """What the holders have, as requests; constraints and MIG slices are not part of it."""
        found = []
        for holder in list(self._holders.values()):
            wanted, node = holder.holding.amounts, holder.holding.node
            pieces = self.shares_per_gpu(node)
            milli = share_milli(pieces) if wanted.get(resources.SHARED) and pieces > 1 else 0
            gpus = Gpus(milli=milli) if milli else Gpus(count=max(wanted.get(resources.GPU, 0), 0))
            if gpus.count or gpus.milli:
                found.append(Request(gpus, cpu_milli=min(wanted.get(resources.CPU, 0), resources.MOST)))
        return found

    # --- holders ----------------------------------------------------------------------------------------

    def __contains__(self, key: str) -> bool:
        return key in self._holders

    def holding(self, key: str) -> Holding | None:
        """What the holder has, with the devices booked for it now."""
        holder = self._holders.get(key)
        if holder is None:
            return None
        gpus = holder.booked_gpus or holder.holding.gpus
        return replace(holder.holding, gpus=gpus, slices=holder.booked_slices or holder.holding.slices)

    def recorded_holding(self, key: str) -> Holding | None:
        """What the holder was recorded with."""
        holder = self._holders.get(key)
        return None if holder is None else holder.holding

    def grants(self, key: str) -> tuple[Grant, ...]:
        holder = self._holders.get(key)
        return holder.grants if holder else ()

    def is_fully_booked(self, key: str) -> bool:
        """Whether its node is known and has all the devices it holds."""
        holder = self._holders.get(key)
        return holder is not None and bool(holder.grants) and not holder.short

    def is_overbooked(self, node: str) -> bool:
        """Whether its holders have more devices together than the node."""
        return any(self._holders[key].short for key in self._keys_on.get(node, ()))

    def holders(self, node: str) -> Sequence[str]:
        return tuple(self._keys_on.get(node, ()))

    def hold(self, key: str, holding: Holding) -> bool:
        """Record what the holder has now; returns whether that changed anything."""
        holder = self._holders.get(key)
        if holder is not None and holder.is_recorded(holding):
            return False
        self._replace_holders((key,), key, holding)
        return True

    def move(self, key: str, new: str, holding: Holding) -> None:
        """Replace the holder `key` by `new` atomically: the capacity is never free in between."""
        self._replace_holders((key, new), new, holding)

    def drop(self, key: str) -> bool:
        """Remove the holder; returns whether it existed."""
        if key not in self._holders:
            return False
        self._rebook_short((self._remove_holder(key).holding.node,))
        return True

    def reserve_plan(self, seats: Mapping[str, Mapping[str, int]], grants: Sequence[Grant]) -> list[Holding]:
        """Reserve a plan's grants under the keys of `seats`, in order: all, or InvariantBroken and nothing is."""
        reserved = []
        if known := self._holders.keys() & seats.keys():
            raise errors.InvariantBroken(f"{', '.join(sorted(known))} would hold two places")
        self.snapshot.commit_all(grants)
        for (key, wanted), grant in zip(seats.items(), grants, strict=True):
            slices = tuple((gpu, placed.start) for gpu, placed in grant.slices)
            gpus = grant.whole_or_shared
            holding = Holding(self.snapshot.nodes[grant.node].name, wanted, gpus, slices)
            self._holders[key] = Holder(holding, (grant,), last=gpus)
            self._keys_on.setdefault(holding.node, {})[key] = None
            reserved.append(holding)
        return reserved

    # --- booking ----------------------------------------------------------------------------------------

    def _replace_holders(self, old: Sequence[str], new: str, holding: Holding) -> None:
        lifted = [self._remove_holder(key) for key in dict.fromkeys(old) if key in self._holders]
        # GPUs guessed before stay guessed on the same node.
        last = next((each.last for each in lifted if each.holding.node == holding.node), 0)
        holder = self._holders[new] = Holder(holding, last=last)
        self._keys_on.setdefault(holding.node, {})[new] = None
        self._book(holder)
        self._rebook_short((*(each.holding.node for each in lifted), holding.node))

    def _remove_holder(self, key: str) -> Holder:
        """Remove the holder; others may be short of its GPUs (`_rebook_short`)."""
        holder = self._holders.pop(key)
        node = holder.holding.node
        del self._keys_on[node][key]
        if not self._keys_on[node]:
            del self._keys_on[node]
        self._release_grants(holder)
        return holder

    def _rebook_short(self, nodes: Iterable[str]) -> None:
        """Re-book holders on these nodes, oldest first, that are short of devices or booked on devices other than the
        kubelet reports."""
        for node in dict.fromkeys(nodes):
            for key in self._keys_on.get(node, ()):
                holder = self._holders[key]
                if holder.short or holder.is_misbooked:
                    self._release_grants(holder)
                    self._book(holder)

    def _book(self, holder: Holder) -> None:
        number = self.snapshot.index.get(holder.holding.node)
        if number is None:
            return
        others = self._find_less_trusted(holder, number)
        for each in others:
            self._release_grants(each)
        for each in (holder, *sorted(others, key=lambda other: -other.holding.trust)):
            others_have = functools.partial(self._gpus_of_others, each)
            each.grants, each.short = self._chooser.make_grants(each, number, others_have)
            each.last = each.booked_gpus
            for grant in each.grants:
                self.snapshot.book(grant)

    def _find_less_trusted(self, holder: Holder, number: int) -> list[Holder]:
        """Holders booked on devices that this holder has with more trust."""
        known = holder.holding
        gpus = known.gpus & self.snapshot.nodes[number].usable & ~int(self.snapshot.free[number])
        if known.amounts.get(resources.SHARED):
            gpus &= ~self._chooser.gpus_with_free_share(number)
        free = {(gpu, each.start) for gpu, each in self._chooser.list_free_slices(number)} if known.slices else set()
        slices = set(known.slices) - free
        if not gpus and not slices:
            return []
        others = [self._holders[key] for key in self._keys_on.get(known.node, ())]
        return [
            other
            for other in others
            if other is not holder
            and other.holding.trust < known.trust
            and any(
                grant.whole_or_shared & gpus or any((gpu, each.start) in slices for gpu, each in grant.slices)
                for grant in other.grants
            )
        ]

    def _release_grants(self, holder: Holder) -> None:
        for grant in holder.grants:
            self.snapshot.release(grant)
        holder.grants = ()

    def _gpus_of_others(self, holder: Holder) -> int:
        mask = 0
        for key in self._keys_on.get(holder.holding.node, ()):
            other = self._holders[key]
            if other is not holder:
                mask |= other.holding.gpus
        return mask

    # --- checking ---------------------------------------------------------------------------------------

    def recount(self) -> Snapshot:
        """A snapshot with every grant booked again; equal to `snapshot` unless the books drifted."""
        fresh = Snapshot.from_nodes(self.snapshot.nodes)
        for holder in self._holders.values():
            for grant in holder.grants:
                fresh.book(grant)
        return fresh
