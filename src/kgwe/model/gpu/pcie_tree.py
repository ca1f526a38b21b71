"""Places in the PCIe tree for machines of which only the relations between devices are known."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from kgwe.model.gpu.topology import Relation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kgwe.model.gpu.topology import PciePath, Wiring

_ONE_SWITCH: Final = frozenset({Relation.PIX})
_SWITCHES: Final = frozenset({Relation.PIX, Relation.PXB})
_BRIDGE: Final = frozenset({Relation.PIX, Relation.PXB, Relation.PHB})


def pcie_paths(wiring: Wiring) -> tuple[tuple[PciePath, ...], tuple[PciePath, ...]]:
    """Paths of the GPUs and of the NICs: host bridge (rc0), then switches (sw0).

    Where the paths themselves are known, they are only renamed. Otherwise devices are grouped by what is known of the
    pairs. A device of which nothing is known has an empty path.
    """
    gpus, nics = len(wiring.slots), len(wiring.nics)
    known = [slot.pcie for slot in wiring.slots] + [nic.pcie for nic in wiring.nics]
    paths = (
        _rename_bridges(known)
        if all(known[:gpus])
        else _group_devices(gpus + nics, lambda a, b: _relation(wiring, a, b))
    )
    return tuple(paths[:gpus]), tuple(paths[gpus:])


def _relation(wiring: Wiring, a: int, b: int) -> Relation:
    """Between two devices, GPUs first; two NICs are not related by any table."""
    a, b = min(a, b), max(a, b)
    gpus = len(wiring.slots)
    if b < gpus:
        return wiring.pcie_relation(a, b)
    return wiring.nic_relation(b - gpus, a) if a < gpus else Relation.UNKNOWN


def _rename_bridges(paths: Sequence[PciePath]) -> list[PciePath]:
    bridges: dict[str, str] = {}
    switches: dict[PciePath, str] = {}
    renamed = []
    for path in paths:
        steps: list[str] = []
        for depth, name in enumerate(path):
            if depth == 0:
                steps.append(bridges.setdefault(name, f"rc{len(bridges)}"))
            else:
                steps.append(switches.setdefault(path[: depth + 1], f"sw{len(switches)}"))
        renamed.append(tuple(steps))
    return renamed


def _group_devices(devices: int, relation: Callable[[int, int], Relation]) -> list[PciePath]:
    bridge = _groups(devices, relation, _BRIDGE)
    outer = _groups(devices, relation, _SWITCHES)
    inner = _groups(devices, relation, _ONE_SWITCH)
    switches: dict[tuple[int, ...], str] = {}
    bridges: dict[int, str] = {}
    paths: list[PciePath] = []
    for device in range(devices):
        others = [relation(device, other) for other in range(devices) if other != device]
        if all(each is Relation.UNKNOWN for each in others):
            paths.append(())
            continue
        steps = [bridges.setdefault(bridge[device], f"rc{len(bridges)}")]
        if any(each in _SWITCHES for each in others):
            steps.append(switches.setdefault((outer[device],), f"sw{len(switches)}"))
            if len({inner[other] for other in range(devices) if outer[other] == outer[device]}) > 1:
                steps.append(switches.setdefault((outer[device], inner[device]), f"sw{len(switches)}"))
        paths.append(tuple(steps))
    return paths


def _groups(devices: int, relation: Callable[[int, int], Relation], joined_by: Iterable[Relation]) -> list[int]:
    """Per device, the lowest device it is joined to, directly or through others."""
    joined_by = frozenset(joined_by)
    group = list(range(devices))
    for a, b in itertools.combinations(range(devices), 2):
        if relation(a, b) in joined_by and group[a] != group[b]:
            low, high = sorted((group[a], group[b]))
            group = [low if each == high else each for each in group]
    return group
