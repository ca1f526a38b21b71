"""Counts the writes that an API server has served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.bench.cluster.measure import apiwrites

if TYPE_CHECKING:
    from collections import Counter

    from tests.support.clusters.bed import Bed


async def count(bed: Bed) -> Counter[str]:
    return apiwrites.count_writes((await bed.client.request("GET", "/metrics")).decode())
