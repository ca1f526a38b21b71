"""Counts the writes that an API server has served."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.support.patience import PATIENCE_S

from kgwe.bench.cluster.measure import apiwrites

if TYPE_CHECKING:
    from collections import Counter

    from tests.support.clusters.bed import Bed


async def count_settled(bed: Bed, *resources: str) -> Counter[str]:
    """The writes so far, once none of these resources is written any more: a busy server counts late."""
    now = await count(bed)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await asyncio.sleep(1)
            before, now = now, await count(bed)
            if all(before[each] == now[each] for each in resources):
                return now


async def count(bed: Bed) -> Counter[str]:
    """Writes without conflicts: on a busy machine a write from a stale view is refused and repeated."""
    lines = (await bed.client.request("GET", "/metrics")).decode().splitlines()
    return apiwrites.count_writes("\n".join(line for line in lines if 'code="409"' not in line))
