"""Clusters without the policy that gives pods their seats at creation."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kgwe.kube.client import manifests
from kgwe.local.host import assets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.clusters.bed import Bed

_PATH = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings/kgwe-seats"


@contextlib.asynccontextmanager
async def removed(bed: Bed) -> AsyncIterator[None]:
    """Until the end of the block, schedulers that start find no policy, and pods keep their gates."""
    await bed.client.request("DELETE", _PATH)
    try:
        yield
    finally:
        documents = manifests.load_manifests(assets.find_asset("deploy/admission.yaml"))
        await manifests.apply_manifest(bed.client, documents)
