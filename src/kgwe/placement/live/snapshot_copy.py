"""Copy the free capacity of nodes from one snapshot to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.placement.fleet.snapshot import Snapshot


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
