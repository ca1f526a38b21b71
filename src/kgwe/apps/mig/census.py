"""The cards of the cluster as the controller decides on them: what is cut, who has it, what was asked of it.

Who has what is known where the agent reports it (`status.held`, or that all is as planned). Where it is not, nothing
is assumed: when a pod on a node asks for a profile, every slice of that profile there counts as its own; when it asks
for GPUs, every whole card.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.kube.translate import mig_layouts, podspec
from kgwe.model.devices import assignment
from kgwe.model.devices.assignment import Places
from kgwe.model.gpu import catalog, mig
from kgwe.model.gpu.mig import Phase
from kgwe.model.units import amounts
from kgwe.sharing.mig.types import CutCard

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import CardSpec, GPUDevice, GPUNode, MIGLayout

_AS_PLANNED: Final = "DevicesAsPlanned"
_NOT_NOW: Final = (Phase.FAILED, Phase.ROLLED_BACK)


@dataclass(frozen=True, slots=True)
class Held:
    """What is taken on one node."""

    slices: frozenset[tuple[int, int]] = frozenset()
    """(card, start) that somebody is known to have."""
    cards: int = 0
    """Mask of whole cards that somebody is known to have."""
    resources: frozenset[str] = frozenset()
    """Extended resources of which somebody has some, nobody knows which."""
    owners: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """(card, start) -> uid of the pod that is known to have it."""


def read_held(gpu_node: GPUNode, pods: Iterable[core.Pod], planned: Collection[str]) -> Held:
    """`pods`: those on the node that have not ended; `planned`: UUIDs of cards and slices that are somebody's, or are
    planned to be."""
    known = {each.uid or each.pod: each for each in gpu_node.status.held}
    # The agent reports at once what is not as planned; the rest when it has something to report anyway.
    follows_plans = any(each.type == _AS_PLANNED and each.status == "True" for each in gpu_node.status.conditions)
    slices = {
        (device.index, each.start)
        for device in gpu_node.status.gpus
        for each in device.mig.instances
        if each.uuid in planned
    }
    cards = sum(1 << device.index for device in gpu_node.status.gpus if device.uuid in planned)
    unknown: set[str] = set()
    owners: dict[tuple[int, int], str] = {}
    for pod in pods:
        wanted = {name: n for name, n in podspec.requested(pod.spec).items() if amounts.is_gpu(name) and n}
        said = known.get(pod.metadata.uid) or known.get(pod.metadata.key)
        if not wanted and said is None:
            continue
        if said is not None:
            mine = Places(assignment.parse_cards(said.cards), assignment.parse_slices(said.slices))
        else:
            asked = sum(wanted.values())
            mine = assignment.planned_for(pod.metadata.annotations, asked) if follows_plans else assignment.NOWHERE
        slices.update(mine.slices)
        owners |= dict.fromkeys(mine.slices, pod.metadata.uid)
        cards |= mine.cards
        if len(mine.slices) + mine.cards.bit_count() < sum(wanted.values()):
            unknown |= wanted.keys()
    return Held(frozenset(slices), cards, frozenset(unknown), owners)


@dataclass(frozen=True, slots=True)
class MigCard:
    """One card, beside what is decided on."""

    card: CutCard
    device: GPUDevice
    geometry: mig.Geometry
    is_settled: bool
    """It is as was asked."""
    asked: CardSpec | None

    @property
    def layout(self) -> MIGLayout | None:
        return self.asked.mig if self.asked else None

    @property
    def phase(self) -> str:
        return self.device.mig.phase

    @property
    def is_moving(self) -> bool:
        """Its agent is, or should be, cutting it."""
        return not self.is_settled and self.layout is not None and self.phase not in (*_NOT_NOW, Phase.WAITING)


@dataclass(frozen=True, slots=True)
class Clocks:
    """What the controller remembers of cards, by UUID."""

    asked_at: Mapping[str, float] = field(default_factory=dict)
    """When a card was last asked to change."""
    cooldown_s: float = 0.0
    patience_s: float = 180.0


def geometry_of(device: GPUDevice) -> mig.Geometry | None:
    try:
        return catalog.find(device.model).geometry
    except errors.Permanent:
        return None


def read_card(gpu_node: GPUNode, device: GPUDevice, taken: Held, clocks: Clocks, now_s: float) -> MigCard | None:
    """The card as it will be when what was asked is done, or as it is where that failed; None: it cannot be cut."""
    geometry = geometry_of(device)
    there = _placements(geometry, device) if geometry else None
    if geometry is None or there is None or not device.mig.capable:
        return None
    asked = mig_layouts.asked(gpu_node).get(device.uuid)
    layout = asked.mig if asked else None
    wished = _wished(geometry, layout)
    used = tuple(
        place
        for place in there
        if (device.index, place.start) in taken.slices or mig.resource_of(place.profile.name) in taken.resources
    )
    is_settled = layout is not None and (layout.enabled, set(wished)) == (device.mig.enabled, set(there))
    since_s = now_s - clocks.asked_at.get(device.uuid, now_s - clocks.cooldown_s)
    is_given_up = device.mig.phase in _NOT_NOW or (
        not is_settled and since_s > clocks.patience_s and device.mig.phase != Phase.WAITING
    )
    follows = layout is not None and not is_given_up
    future = _beside(geometry, used, wished) if follows else there
    is_enabled = layout.enabled if layout is not None and follows else device.mig.enabled
    card = CutCard(
        device.uuid,
        gpu_node.metadata.name,
        used,
        tuple(place for place in future if place not in used),
        is_whole=not is_enabled and not used,
        is_decided=layout is not None,
        # What failed may be asked for something else, or again, when its agent has had its time.
        is_open=since_s >= clocks.patience_s
        if is_given_up
        else (is_settled or layout is None) and not device.mig.phase and since_s >= clocks.cooldown_s,
        is_taken=not device.mig.enabled
        and bool(taken.cards >> device.index & 1 or {amounts.GPU, amounts.SHARED} & taken.resources),
    )
    return MigCard(card, device, geometry, is_settled, asked)


def _placements(geometry: mig.Geometry, device: GPUDevice) -> tuple[mig.Placement, ...] | None:
    """None where the card is cut in a way we do not know: it is left alone."""
    return _parsed(geometry.name, tuple(f"{each.profile}@{each.start}" for each in device.mig.instances))


def _wished(geometry: mig.Geometry, layout: MIGLayout | None) -> tuple[mig.Placement, ...]:
    return (_parsed(geometry.name, layout.instances) or ()) if layout else ()


@functools.lru_cache(maxsize=4096)
def _parsed(geometry: str, layout: tuple[str, ...]) -> tuple[mig.Placement, ...] | None:
    """Thousands of cards have few layouts."""
    try:
        return tuple(mig.parse_placement(mig.GEOMETRIES[geometry], text) for text in layout)
    except errors.Permanent:
        return None


def _beside(
    geometry: mig.Geometry, used: tuple[mig.Placement, ...], wished: tuple[mig.Placement, ...]
) -> tuple[mig.Placement, ...]:
    """What was asked, as far as it goes beside what came into use since."""
    if all(place in wished for place in used):
        return wished
    kept = list(used)
    for place in wished:
        if place not in kept and not mig.problems(geometry, [*kept, place]):
            kept.append(place)
    return tuple(kept)


def profile_shares(cards: Iterable[MigCard]) -> dict[str, float]:
    """Share of the memory slices in each profile now."""
    units: Counter[str] = Counter()
    total = 0
    for each in cards:
        total += each.geometry.units
        for instance in each.device.mig.instances:
            units[instance.profile] += instance.size
    return {name: round(count / total, 4) for name, count in sorted(units.items())}
