"""Things that no watch of the bed announces, asked for again and again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from tests.support.patience import PATIENCE_S

from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.clusters.bed import Bed


async def until(read: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """What `read` returns, once that is something."""
    async with asyncio.timeout(timeout_s):
        while not (found := await read()):  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.2)
    return found


async def events_on(bed: Bed, name: str, reason: str, namespace: str = "default") -> list[dict[str, Any]]:
    found = [msgspec.json.decode(bytes(each)) for each in await bed.client.list(resources.EVENT, namespace)]
    return [each for each in found if each["reason"] == reason and each["regarding"]["name"] == name]
