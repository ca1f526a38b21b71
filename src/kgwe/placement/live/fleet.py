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

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from kgwe import errors
from kgwe.model.network import domains
from kgwe.model.units import amounts as resources
from kgwe.placement.fleet.node import GPU_MILLI, Gpus, Request, share_milli
from kgwe.placement.fleet.snapshot import Debt, Grant, Snapshot, list_gpus
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
"""(GPU, start) of MIG slices."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one pod, or one seat, holds on a node."""

    node: str
    amounts: Mapping[str, int] = field(default_factory=dict)
    #: mask of whole GPUs it is known, or planned, to have; 0: not known
    gpus: int = 0
    #: slices it is known, or planned, to have
    slices: Slices = ()
    #: the devices are reported by the kubelet, not planned
    observed: bool = False

    @property
    def trust(self) -> int:
        """0: guessed, 1: planned, 2: observed."""
        return (1 + self.observed) if self.gpus or self.slices else 0


@dataclass(slots=True)
class _Holder:
    holding: Holding
    #: what is booked for it; empty while its node is unknown
    grants: tuple[Grant, ...] = ()
    #: it holds more devices than the node could give
    short: bool = False
    #: GPUs it had when last booked
    last: int = 0


class LiveFleet:
    """One live snapshot. Not thread-safe: other threads plan on a `ScratchFleet` of it."""

    def __init__(self, weights: Weights = Weights()) -> None:  # noqa: B008 - frozen
        self.weights = weights
        self.domain_weights = DomainWeights()
        #: of pods that name none
        self.strategy = Strategy.SCORE
        self.mix = ArrivalMix(self._running_requests)
        self._holders: dict[str, _Holder] = {}
        self._keys_on: dict[str, dict[str, None]] = {}  # node -> keys of its holders, oldest first
        #: raised whenever the set of nodes or the network changes
        self.generation = 0
        self.snapshot = Snapshot.from_nodes(())
        self.set_nodes((), domains.build((), ()))

    # --- nodes ------------------------------------------------------------------------------------------

    def set_nodes(self, nodes: Iterable[Node], tree: Tree) -> None:
        """Replace the nodes and the network; holders on missing nodes wait for their return."""
        before = self.snapshot
        self.snapshot = Snapshot.from_nodes(sorted(nodes, key=lambda node: node.name))
        self.tree = tree
        self.fitter = Fitter(self.snapshot)
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

    def node(self, name: str) -> Node | None:
        number = self.snapshot.index.get(name)
        return None if number is None else self.snapshot.nodes[number]

    def shares_per_gpu(self, name: str) -> int:
        """How many shares the node makes of each GPU; for an unknown node, the usual number."""
        node = self.node(name)
        return (node.pieces if node is not None else 0) or self.fitter.usual_shares

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
        gpus = _booked_gpus(holder) or holder.holding.gpus
        return replace(holder.holding, gpus=gpus, slices=_booked_slices(holder) or holder.holding.slices)

    def recorded(self, key: str) -> Holding | None:
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
        if holder is not None and _is_unchanged(holder, holding):
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
            self._holders[key] = _Holder(holding, (grant,), last=gpus)
            self._keys_on.setdefault(holding.node, {})[key] = None
            reserved.append(holding)
        return reserved

    # --- booking ----------------------------------------------------------------------------------------

    def _replace_holders(self, old: Sequence[str], new: str, holding: Holding) -> None:
        lifted = [self._remove_holder(key) for key in dict.fromkeys(old) if key in self._holders]
        # GPUs guessed before stay guessed on the same node.
        last = next((each.last for each in lifted if each.holding.node == holding.node), 0)
        holder = self._holders[new] = _Holder(holding, last=last)
        self._keys_on.setdefault(holding.node, {})[new] = None
        self._book(holder)
        self._rebook_short((*(each.holding.node for each in lifted), holding.node))

    def _remove_holder(self, key: str) -> _Holder:
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
                if holder.short or _is_misbooked(holder):
                    self._release_grants(holder)
                    self._book(holder)

    def _book(self, holder: _Holder) -> None:
        number = self.snapshot.index.get(holder.holding.node)
        if number is None:
            return
        others = self._find_less_trusted(holder, number)
        for each in others:
            self._release_grants(each)
        for each in (holder, *sorted(others, key=lambda other: -other.holding.trust)):
            each.grants, each.short = self._make_grants(each, number)
            each.last = _booked_gpus(each)
            for grant in each.grants:
                self.snapshot.book(grant)

    def _find_less_trusted(self, holder: _Holder, number: int) -> list[_Holder]:
        """Holders booked on devices that this holder has with more trust."""
        known = holder.holding
        gpus = known.gpus & self.snapshot.nodes[number].usable & ~int(self.snapshot.free[number])
        if known.amounts.get(resources.SHARED):
            gpus &= ~self._gpus_with_free_share(number)
        free = {(gpu, each.start) for gpu, each in self._list_free_slices(number)} if known.slices else set()
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

    def _release_grants(self, holder: _Holder) -> None:
        for grant in holder.grants:
            self.snapshot.release(grant)
        holder.grants = ()

    def _make_grants(self, holder: _Holder, node: int) -> tuple[tuple[Grant, ...], bool]:
        """One grant for each kind of GPU it holds (most often one), and whether it is short of devices."""
        holding = holder.holding
        wanted = holding.amounts
        # Amounts in manifests are capped when read; those in plans stored long ago may not be.
        cpu, memory = (min(wanted.get(name, 0), resources.MOST) for name in (resources.CPU, resources.MEMORY))
        count = wanted.get(resources.GPU, 0)
        gpus = self._choose_gpus(holder, count, node)
        slices = [(name, number) for name, number in wanted.items() if name.startswith(resources.MIG_PREFIX) and number]
        grants = [Grant(node, cpu, memory, gpus=gpus, pods=wanted.get(resources.PODS, 1))]
        shares = min(wanted.get(resources.SHARED, 0), GPU_MILLI)
        while shares and (share := self._choose_share(holder, node, grants)) is not None:
            shares -= 1
            if grants[0].whole_or_shared:
                grants.append(share)
            else:
                grants[0] = replace(grants[0], gpus=share.gpus, share=share.share)
        missing: list[tuple[str, int]] = []
        for name, number in slices:
            profile = name.removeprefix(resources.MIG_PREFIX)
            found = self._choose_slices(profile, number, node, holding.slices)
            if len(found) < number:
                missing.append((profile, number - len(found)))
            if found:
                grants.append(Grant(node, slices=found, pods=0))
        # A share whose GPU is observed waits for that GPU, whatever else comes free.
        owed = Debt(count - gpus.bit_count(), 0 if holding.observed else shares, tuple(missing))
        grants[0] = replace(grants[0], owed=owed)
        return tuple(grants), bool(owed) or bool(shares)

    def _choose_gpus(self, holder: _Holder, count: int, node: int) -> int:
        """A mask of free GPUs: those known to be its own, else the engine's choice."""
        free, holding = int(self.snapshot.free[node]), holder.holding
        if free.bit_count() <= count:
            return free
        mine = list_gpus((holding.gpus or holder.last) & free)[:count]
        if not mine:
            return self.fitter.choose_gpus(Request(Gpus(count=count)), node) if count else 0
        own = sum(1 << gpu for gpu in mine)
        if len(mine) == count:
            return own
        # Other holders may be known to have GPUs that are not booked for them yet.
        rest = list_gpus(free & ~own & ~self._gpus_of_others(holder))[: count - len(mine)]
        return own | sum(1 << gpu for gpu in rest)

    def _choose_share(self, holder: _Holder, node: int, mine: Sequence[Grant]) -> Grant | None:
        """One more share beside what it has: of the GPU known to be its own, else of the fullest with room.

        If the node no longer divides its GPUs, the whole GPU is booked.
        """
        per_gpu, holding = self.snapshot.nodes[node].pieces, holder.holding
        left = self.snapshot.milli[node].copy()
        for grant in mine:
            left[list_gpus(grant.gpus)] = 0
            if grant.share is not None:
                left[grant.share[0]] -= grant.share[1]
        known = holding.gpus or holder.last
        milli = share_milli(per_gpu) if per_gpu else GPU_MILLI
        with_room: list[int] = np.flatnonzero(left >= milli).tolist()
        if holding.observed or not per_gpu:
            # On another GPU it would take the room of other holders.
            with_room = [gpu for gpu in with_room if known >> gpu & 1]
        if not with_room:
            return None
        gpu = min(with_room, key=lambda gpu: (not known >> gpu & 1, int(left[gpu]), gpu))
        return Grant(node, share=(gpu, milli, 0), pods=0) if per_gpu else Grant(node, gpus=1 << gpu, pods=0)

    def _gpus_with_free_share(self, node: int) -> int:
        """Mask of the GPUs with a free share."""
        per_gpu = self.snapshot.nodes[node].pieces
        least = share_milli(per_gpu) if per_gpu else GPU_MILLI
        return sum(1 << gpu for gpu in np.flatnonzero(self.snapshot.milli[node] >= least).tolist())

    def _gpus_of_others(self, holder: _Holder) -> int:
        mask = 0
        for key in self._keys_on.get(holder.holding.node, ()):
            other = self._holders[key]
            if other is not holder:
                mask |= other.holding.gpus
        return mask

    def _choose_slices(self, profile: str, number: int, node: int, known: Slices) -> tuple[tuple[int, Placement], ...]:
        found = [
            (gpu, each) for gpu, each in self._list_free_slices(node) if _resource_name(each.profile.name) == profile
        ]
        found.sort(key=lambda each: (each[0], each[1].start) not in known)
        return tuple(found[:number])

    def _list_free_slices(self, node: int) -> list[tuple[int, Placement]]:
        cut = self.snapshot.nodes[node].cut
        return [(gpu, each) for gpu in cut for each in self.snapshot.free_slices.get((node, gpu), ())]

    # --- checking ---------------------------------------------------------------------------------------

    def recount(self) -> Snapshot:
        """A snapshot with every grant booked again; equal to `snapshot` unless the books drifted."""
        fresh = Snapshot.from_nodes(self.snapshot.nodes)
        for holder in self._holders.values():
            for grant in holder.grants:
                fresh.book(grant)
        return fresh


def _is_unchanged(holder: _Holder, new: Holding) -> bool:
    """Whether `new` is recorded already; unknown devices change nothing."""
    told = holder.holding
    if (told.node, told.amounts, told.observed) != (new.node, new.amounts, new.observed):
        return False
    if new.gpus in (0, told.gpus) and new.slices in ((), told.slices):
        return True
    return new.gpus in (0, holder.last) and new.slices in ((), _booked_slices(holder))


def _is_misbooked(holder: _Holder) -> bool:
    return holder.holding.observed and bool(holder.holding.gpus & ~_booked_gpus(holder))


def _booked_gpus(holder: _Holder) -> int:
    mask = 0
    for grant in holder.grants:
        mask |= grant.whole_or_shared
    return mask


def _booked_slices(holder: _Holder) -> Slices:
    return tuple((gpu, placed.start) for grant in holder.grants for gpu, placed in grant.slices)


def _resource_name(profile: str) -> str:
    """The profile's spelling in a resource name."""
    return profile.replace("+", ".")


def copy_rows(source: Snapshot, target: Snapshot, nodes: Iterable[int]) -> None:
    """Copy the free capacity of these nodes from `source` to `target`."""
    rows = list(nodes)
    if not rows:
        return
    for name in ("free", "cpu_milli", "memory_bytes", "pods", "owed", "owed_shares"):
        getattr(target, name)[rows] = getattr(source, name)[rows]
    # Arrays may differ in width, or in profiles, because of other nodes.
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
        for gpu in source.nodes[node].cut:
            if (node, gpu) in source.free_slices:
                target.free_slices[node, gpu] = list(source.free_slices[node, gpu])
    target.has_debts |= source.has_debts
    target.version += 1
    target.changed[rows] = target.version
