"""Choose the devices that are booked for a holder on its node."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kgwe.model.units import amounts as resources
from kgwe.placement.fleet.node import GPU_MILLI, Gpus, Request, share_milli
from kgwe.placement.fleet.snapshot import Debt, Grant, list_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.model.gpu.mig import Placement
    from kgwe.placement.live.holding import Holder, Slices
    from kgwe.placement.pod.fit import Fitter


class DeviceChooser:
    """Chooses devices over the snapshot of one fitter; books nothing."""

    def __init__(self, fitter: Fitter) -> None:
        self._fitter = fitter
        self._snapshot = fitter.snapshot

    def make_grants(
        self, holder: Holder, node: int, gpus_of_others: Callable[[], int]
    ) -> tuple[tuple[Grant, ...], bool]:
        """One grant for each kind of GPU it holds (most often one), and whether it is short of devices.

        `gpus_of_others`: mask of the GPUs that other holders on the node are known to have.
        """
        holding = holder.holding
        wanted = holding.amounts
        # Amounts in manifests are capped when read; those in plans stored long ago may not be.
        cpu, memory = (min(wanted.get(name, 0), resources.MOST) for name in (resources.CPU, resources.MEMORY))
        count = wanted.get(resources.GPU, 0)
        gpus = self._choose_gpus(holder, count, node, gpus_of_others)
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
        if owed:
            grants[0] = replace(grants[0], owed=owed)
        return tuple(grants), bool(owed) or bool(shares)

    def _choose_gpus(self, holder: Holder, count: int, node: int, gpus_of_others: Callable[[], int]) -> int:
        """A mask of free GPUs: those known to be its own, else the engine's choice."""
        free, holding = int(self._snapshot.free[node]), holder.holding
        if free.bit_count() <= count:
            return free
        mine = list_gpus((holding.gpus or holder.last) & free)[:count]
        if not mine:
            return self._fitter.choose_gpus(Request(Gpus(count=count)), node) if count else 0
        own = sum(1 << gpu for gpu in mine)
        if len(mine) == count:
            return own
        # Other holders may be known to have GPUs that are not booked for them yet.
        rest = list_gpus(free & ~own & ~gpus_of_others())[: count - len(mine)]
        return own | sum(1 << gpu for gpu in rest)

    def _choose_share(self, holder: Holder, node: int, mine: Sequence[Grant]) -> Grant | None:
        """One more share beside what it has: of the GPU known to be its own, else of the fullest with room.

        If the node no longer divides its GPUs, the whole GPU is booked.
        """
        per_gpu, holding = self._snapshot.nodes[node].shares_per_gpu, holder.holding
        left = self._snapshot.milli[node].copy()
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

    def gpus_with_free_share(self, node: int) -> int:
        """Mask of the GPUs with a free share."""
        per_gpu = self._snapshot.nodes[node].shares_per_gpu
        least = share_milli(per_gpu) if per_gpu else GPU_MILLI
        return sum(1 << gpu for gpu in np.flatnonzero(self._snapshot.milli[node] >= least).tolist())

    def _choose_slices(self, profile: str, number: int, node: int, known: Slices) -> tuple[tuple[int, Placement], ...]:
        found = [
            (gpu, each) for gpu, each in self.list_free_slices(node) if _resource_name(each.profile.name) == profile
        ]
        found.sort(key=lambda each: (each[0], each[1].start) not in known)
        return tuple(found[:number])

    def list_free_slices(self, node: int) -> list[tuple[int, Placement]]:
        cut = self._snapshot.nodes[node].cut
        return [(gpu, each) for gpu in cut for each in self._snapshot.free_slices.get((node, gpu), ())]


def _resource_name(profile: str) -> str:
    """The profile's spelling in a resource name."""
    return profile.replace("+", ".")
