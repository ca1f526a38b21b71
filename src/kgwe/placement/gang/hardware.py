"""Lists the hardware kinds that a gang tries, stage by stage, so that its pods run on similar nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kgwe.placement.fleet.hardware_kinds import HardwareKind, names_arch, names_model
from kgwe.placement.gang.request import Hardware

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kgwe.placement.fleet.hardware_kinds import HardwareKinds
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.gang.request import GangRequest

    Fits = Callable[[Request], NDArray[np.bool_]]
    """Node -> whether a pod would fit if the node were empty."""


def hardware_stages(kinds: HardwareKinds, gang: GangRequest, fits: Fits) -> list[list[HardwareKind | None]]:
    """The kinds to try in each stage, in order; None: all nodes."""
    if len(kinds.all) <= 1 or gang.hardware is Hardware.ANY:
        return [[None]]
    archs = _common_archs(kinds, gang, fits)
    if not archs:
        # No architecture holds all roles: all nodes are searched, so that a refusal covers all of them.
        return [[None]]
    mixed: list[HardwareKind | None] = [HardwareKind(arch) for arch in archs] if len(kinds.archs) > 1 else [None]
    same: list[HardwareKind | None] = [kind for kind in _usable_kinds(kinds, gang, fits) if kind.arch in archs]
    if not same or (gang.hardware is Hardware.PREFER_SAME and not gang.communicates):
        return [mixed]
    if gang.hardware is Hardware.SAME or len(same) == len(mixed):
        return [same]
    return [same, mixed]


def _usable_kinds(kinds: HardwareKinds, gang: GangRequest, fits: Fits) -> list[HardwareKind]:
    """Kinds of the nodes that roles with GPUs could use; empty when each of these roles names its model."""
    could = [fits(role.request) for role in gang.roles if not names_model(role.request)]
    if not could:
        return []
    return [kinds.all[code] for code in np.unique(kinds.of_node[np.logical_or.reduce(could)]).tolist()]


def _common_archs(kinds: HardwareKinds, gang: GangRequest, fits: Fits) -> list[str]:
    """Architectures that have a node for every role that names no architecture."""
    found = set(kinds.archs)
    for role in gang.roles:
        if not names_arch(role.request.constraints):
            codes = np.unique(kinds.of_node[fits(role.request)])
            found &= {kinds.all[code].arch for code in codes.tolist()}
    return sorted(found)
