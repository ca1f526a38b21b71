"""Slices of ResourceClaims (dynamic resource allocation): allocated slices, and claims that no slice can serve.

A claim requests a profile with a selector: `device.attributes['gpu.nvidia.com'].profile == '1g.10gb'`. Other
selectors are not understood and get existing slices only. Counted are claims that Kubernetes creates for one pod from
a template. Pods of GPUWorkloads claim the devices of their plan, so the workload waits instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kgwe.kube.api.resource import MIG_CLASS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.kube.api.resource import ResourceClaim

_PROFILE: Final = re.compile(r"""\.profile\s*==\s*['"]([1-9]g\.[0-9]+gb(?:[+-][a-z.]+)?)['"]""")

Find = Callable[[str, str], tuple[str, str] | None]
"""(pool, device) of a claim -> (node, UUID)."""


def _find_no_device(_pool: str, _device: str) -> None:
    return None


@dataclass(frozen=True)
class Claims:
    """The ResourceClaims of the cluster; empty if it has no dynamic resource allocation."""

    store: Mapping[str, ResourceClaim] = field(default_factory=dict)
    find: Find = _find_no_device

    def copy(self) -> Claims:
        return Claims(dict(self.store), self.find)

    def assigned_uuids(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs and slices allocated to claims."""
        named = (self.find(each.pool, each.device) for claim in self.store.values() for each in claim.gpus)
        return frozenset(found[1] for found in named if found is not None)

    def list_holders(self) -> frozenset[tuple[str, str]]:
        """Return (namespace, uid) of the pods whose own claims have devices."""
        metas = (claim.metadata for claim in self.store.values() if claim.gpus)
        owners = ((meta.namespace, meta.controller) for meta in metas)
        return frozenset((where, owner.uid) for where, owner in owners if owner is not None and owner.kind == "Pod")

    def requested_slices(self) -> dict[tuple[str, str], tuple[str, int]]:
        """Return (namespace, uid) of a pod -> (profile, count) that its own claim requests and does not have yet."""
        found: dict[tuple[str, str], tuple[str, int]] = {}
        for claim in self.store.values():
            owner = claim.metadata.controller
            if owner is None or owner.kind != "Pod" or claim.status.allocation is not None:
                continue
            wanted = _read_request(claim)
            if wanted is not None:
                found[claim.metadata.namespace, owner.uid] = wanted
        return found


def _read_request(claim: ResourceClaim) -> tuple[str, int] | None:
    """Return the profile and count of a claim for slices of one kind."""
    wanted: dict[str, int] = {}
    for request in claim.spec.devices.requests:
        exactly = request.exactly
        if exactly is None or exactly.deviceClassName != MIG_CLASS or exactly.allocationMode != "ExactCount":
            continue
        profiles = {name for each in exactly.selectors if each.cel for name in _PROFILE.findall(each.cel.expression)}
        if len(profiles) == 1:
            (profile,) = profiles
            wanted[profile] = wanted.get(profile, 0) + exactly.count
    return next(iter(wanted.items())) if len(wanted) == 1 else None
