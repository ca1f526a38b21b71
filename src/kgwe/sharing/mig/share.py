"""The fraction of a GPU that a slice represents, for prices and quotas, as exact fractions.

A slice denies others the scarcer of the resources it takes: its *list share* is the larger of its share of the compute
slices and its share of the memory units. A 3g.40gb has 3 of 7 compute slices but 4 of 8 memory units, so it is half a
GPU. Two of them are a whole GPU although a seventh of the compute is unused.

List shares of a full GPU need not add up to one: seven 1g leave an unusable memory unit, and 4g + 3g come to 4/7 + 1/2.
So shares are *settled* per layout, and nothing is lost or paid twice:

    full GPU (nothing more fits)       list shares, scaled to add up to exactly 1
    else                                list shares, scaled down only if they exceed 1; the rest is idle

Capacity that can still be used is idle; capacity that the layout makes unusable is paid by the slices around it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.model.gpu import mig

if TYPE_CHECKING:
    from collections.abc import Sequence


def list_share(geometry: mig.Geometry, profile: mig.Profile) -> Fraction:
    """The share of a GPU that a profile represents on its own."""
    return max(Fraction(profile.compute, geometry.compute), Fraction(profile.units, geometry.units))


def settle_shares(geometry: mig.Geometry, layout: Sequence[mig.Placement]) -> tuple[Fraction, ...]:
    """The share of the GPU that each slice pays for, in the given order; with `idle_share` they add up to 1."""
    if wrong := mig.find_problems(geometry, layout):
        raise errors.Permanent(f"a {geometry.name} cannot be cut like this: {'; '.join(wrong)}")
    listed = [list_share(geometry, placement.profile) for placement in layout]
    total = sum(listed, Fraction(0))
    scale = 1 / total if total > 1 or is_full(geometry, layout) else Fraction(1)
    return tuple(share * scale for share in listed)


def idle_share(geometry: mig.Geometry, layout: Sequence[mig.Placement]) -> Fraction:
    """The share of the GPU that no slice pays for; 0 if nothing more fits."""
    return 1 - sum(settle_shares(geometry, layout), Fraction(0))


def is_full(geometry: mig.Geometry, layout: Sequence[mig.Placement]) -> bool:
    """Whether no slice of any profile can be added."""
    return not any(
        not mig.find_problems(geometry, [*layout, mig.Placement(profile, start)])
        for profile in geometry.profiles.values()
        for start in profile.starts
    )
