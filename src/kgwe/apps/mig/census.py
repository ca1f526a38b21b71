"""The GPUs of the cluster as the controller decides on them: slices, pods that hold them, and layouts.

The agent reports which pod holds which slice (`status.held`, or that all is as planned). Without that report the
worst is assumed: if a pod on a node requests a profile, all slices of that profile count as in use; if it requests
GPUs, all whole GPUs.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.kube.translate import mig_layouts, podspec
from kgwe.model.devices import assignment
from kgwe.model.devices.assignment import DeviceSet
from kgwe.model.gpu import catalog, mig
from kgwe.model.gpu.mig import Phase
from kgwe.model.units import amounts
from kgwe.sharing.mig.types import PartitionedGpu

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import CardSpec, GPUDevice, GPUNode, HeldDevices, MIGLayout

_AS_PLANNED: Final = "DevicesAsPlanned"
_NOT_NOW: Final = (Phase.FAILED, Phase.ROLLED_BACK)


@dataclass(frozen=True, slots=True)
class Held:
    """The devices in use on one node."""

    slices: frozenset[tuple[int, int]] = frozenset()
    """(GPU, start) of slices that pods are known to hold."""
    cards: int = 0
    """Mask of whole GPUs that pods are known to hold."""
    resources: frozenset[str] = frozenset()
    """Extended resources of which pods hold unknown devices."""
    owners: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """(GPU, start) -> uid of the pod that is known to hold it."""


def read_held(gpu_node: GPUNode, pods: Iterable[core.Pod], planned: Collection[str]) -> Held:
    """Return the devices in use. `pods` are the active pods of the node, `planned` the UUIDs planned for pods."""
    reported = {each.uid or each.pod: each for each in gpu_node.status.held}
    # The agent reports deviations from the plan at once, and the rest with its next report.
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
        wanted = {name: n for name, n in podspec.sum_requests(pod.spec).items() if amounts.is_gpu(name) and n}
        report = reported.get(pod.metadata.uid) or reported.get(pod.metadata.key)
        if not wanted and report is None:
            continue
        places = _places_of_pod(pod, report, sum(wanted.values()), follows_plans=follows_plans)
        slices.update(places.slices)
        owners |= dict.fromkeys(places.slices, pod.metadata.uid)
        cards |= places.gpus
        if len(places.slices) + places.gpus.bit_count() < sum(wanted.values()):
            unknown |= wanted.keys()
    return Held(frozenset(slices), cards, frozenset(unknown), owners)


def _places_of_pod(pod: core.Pod, report: HeldDevices | None, wanted: int, *, follows_plans: bool) -> DeviceSet:
    """Return the devices of the pod: as reported, or as planned if the agent follows plans."""
    if report is not None:
        return DeviceSet(assignment.parse_mask(report.cards), assignment.parse_slices(report.slices))
    return assignment.parse_planned_up_to(pod.metadata.annotations, wanted) if follows_plans else assignment.NO_DEVICES


@dataclass(frozen=True, slots=True)
class MigCard:
    """One GPU with its decision data."""

    card: PartitionedGpu
    device: GPUDevice
    geometry: mig.Geometry
    is_settled: bool
    """True if it has the desired layout."""
    asked: CardSpec | None

    @property
    def layout(self) -> MIGLayout | None:
        return self.asked.mig if self.asked else None

    @property
    def phase(self) -> str:
        return self.device.mig.phase

    @property
    def is_moving(self) -> bool:
        """Return whether its agent is changing the layout, or should be."""
        return not self.is_settled and self.layout is not None and self.phase not in (*_NOT_NOW, Phase.WAITING)


@dataclass(frozen=True, slots=True)
class Clocks:
    """The times that the controller keeps per GPU, by UUID."""

    asked_at: Mapping[str, float] = field(default_factory=dict)
    """Time of the last requested change of a GPU."""
    cooldown_s: float = 0.0
    patience_s: float = 180.0


def geometry_of(device: GPUDevice) -> mig.Geometry | None:
    try:
        return catalog.find_model(device.model).geometry
    except errors.Permanent:
        return None


def read_card(gpu_node: GPUNode, device: GPUDevice, taken: Held, clocks: Clocks, now_s: float) -> MigCard | None:
    """Return the GPU with its desired layout, or the current one if that failed; None if it has no MIG layout."""
    geometry = geometry_of(device)
    there = _find_placements(geometry, device) if geometry else None
    if geometry is None or there is None or not device.mig.capable:
        return None
    asked = mig_layouts.read_specs(gpu_node).get(device.uuid)
    progress = _read_progress(geometry, device, asked, there, clocks=clocks, now_s=now_s)
    used = _used_slices(device, there, taken)
    future = _keep_compatible(geometry, used, progress.wished) if progress.is_followed else there
    is_enabled = progress.layout.enabled if progress.layout and progress.is_followed else device.mig.enabled
    card = PartitionedGpu(
        device.uuid,
        gpu_node.metadata.name,
        used,
        tuple(place for place in future if place not in used),
        is_whole=not is_enabled and not used,
        is_decided=progress.layout is not None,
        is_open=progress.is_open(device, clocks),
        is_taken=_is_taken_whole(device, taken),
    )
    return MigCard(card, device, geometry, progress.is_settled, asked)


@dataclass(frozen=True, slots=True)
class _Progress:
    """The progress of a GPU towards its desired layout."""

    layout: MIGLayout | None
    wished: tuple[mig.Placement, ...]
    """The slices of the layout."""
    since_s: float
    """Seconds since the request."""
    is_settled: bool
    is_given_up: bool

    @property
    def is_followed(self) -> bool:
        """Return whether its agent can be expected to apply the layout."""
        return self.layout is not None and not self.is_given_up

    def is_open(self, device: GPUDevice, clocks: Clocks) -> bool:
        """Return whether another layout may be requested now."""
        if self.is_given_up:
            # A failed layout may be replaced, or requested again, after the agent's time has passed.
            return self.since_s >= clocks.patience_s
        is_at_rest = (self.is_settled or self.layout is None) and not device.mig.phase
        return is_at_rest and self.since_s >= clocks.cooldown_s


def _read_progress(
    geometry: mig.Geometry,
    device: GPUDevice,
    asked: CardSpec | None,
    there: tuple[mig.Placement, ...],
    *,
    clocks: Clocks,
    now_s: float,
) -> _Progress:
    layout = asked.mig if asked else None
    wished = _read_desired(geometry, layout)
    is_settled = layout is not None and (layout.enabled, set(wished)) == (device.mig.enabled, set(there))
    since_s = now_s - clocks.asked_at.get(device.uuid, now_s - clocks.cooldown_s)
    is_late = not is_settled and since_s > clocks.patience_s and device.mig.phase != Phase.WAITING
    return _Progress(layout, wished, since_s, is_settled, device.mig.phase in _NOT_NOW or is_late)


def _used_slices(device: GPUDevice, there: tuple[mig.Placement, ...], taken: Held) -> tuple[mig.Placement, ...]:
    """Return the slices that pods hold, or may hold."""
    return tuple(
        place
        for place in there
        if (device.index, place.start) in taken.slices or mig.resource_of(place.profile.name) in taken.resources
    )


def _is_taken_whole(device: GPUDevice, taken: Held) -> bool:
    """Return whether a pod holds the GPU without MIG, or may hold it."""
    if device.mig.enabled:
        return False
    return bool(taken.cards >> device.index & 1 or {amounts.GPU, amounts.SHARED} & taken.resources)


def _find_placements(geometry: mig.Geometry, device: GPUDevice) -> tuple[mig.Placement, ...] | None:
    """Return the placements; None if the layout is unknown, and the GPU is then not managed."""
    return _parse_layout(geometry.name, tuple(f"{each.profile}@{each.start}" for each in device.mig.instances))


def _read_desired(geometry: mig.Geometry, layout: MIGLayout | None) -> tuple[mig.Placement, ...]:
    return (_parse_layout(geometry.name, layout.instances) or ()) if layout else ()


@functools.lru_cache(maxsize=4096)
def _parse_layout(geometry: str, layout: tuple[str, ...]) -> tuple[mig.Placement, ...] | None:
    """Parse a layout; cached, because thousands of GPUs have few layouts."""
    try:
        return tuple(mig.parse_placement(mig.GEOMETRIES[geometry], text) for text in layout)
    except errors.Permanent:
        return None


def _keep_compatible(
    geometry: mig.Geometry, used: tuple[mig.Placement, ...], wished: tuple[mig.Placement, ...]
) -> tuple[mig.Placement, ...]:
    """Return the requested slices that still fit with the slices that came into use since."""
    if all(place in wished for place in used):
        return wished
    kept = list(used)
    for place in wished:
        if place not in kept and not mig.find_problems(geometry, [*kept, place]):
            kept.append(place)
    return tuple(kept)


def profile_shares(cards: Iterable[MigCard]) -> dict[str, float]:
    """Return the fraction of memory slices in each profile."""
    units: Counter[str] = Counter()
    total = 0
    for each in cards:
        total += each.geometry.units
        for instance in each.device.mig.instances:
            units[instance.profile] += instance.size
    return {name: round(count / total, 4) for name, count in sorted(units.items())}
