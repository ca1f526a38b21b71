"""Watches the kinds in which others describe gangs: those that the cluster serves, and those that it serves later.

None of them is required. A kind that may not be read is left out with a warning that names the missing right, and is
tried again like one that is not served yet. KGWE need not be restarted after installing JobSet or Volcano.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from kgwe import errors
from kgwe.kube import dialects
from kgwe.kube.client.informer import Informer

if TYPE_CHECKING:
    from kgwe.cluster.gangs.external_gangs import ExternalGangs
    from kgwe.cluster.gangs.group_objects import GroupObjects
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)


class GangKinds:
    """Adds informers of gang kinds to those of one replica."""

    def __init__(
        self,
        client: KubeClient,
        objects: GroupObjects,
        gangs: ExternalGangs,
        informers: list[Informer[Any]],
        *,
        look_again_s: float,
    ) -> None:
        self._client = client
        self._objects = objects
        self._gangs = gangs
        self._informers = informers
        self._look_again_s = look_again_s
        self._forbidden: dict[str, str] = {}  # kind -> why, as far as it was logged

    async def add_served(self) -> None:
        """Add the kinds that the cluster serves now, before anything runs."""
        for kind in await self._list_readable():
            informer = next((each for each in self._informers if each.resource == kind), None)
            if informer is None:
                informer = Informer(self._client, kind)
                # Before the pods: a gang's first pod is then read with its group in sight.
                self._informers.insert(0, informer)
            self._add_listener(informer)

    async def run(self) -> None:
        """Add kinds that the cluster serves later; ends only with an error of an informer."""
        coming: set[Resource[Any]] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._look_again_s)
                try:
                    found = await self._list_readable()
                except errors.KgweError as exc:
                    log.warning("group_kinds_not_found_out", error=str(exc), retry_in_s=self._look_again_s)
                    continue
                for kind in found:
                    if kind not in self._objects.stores and kind not in coming:
                        coming.add(kind)
                        informer: Informer[Any] = Informer(self._client, kind)
                        group.create_task(informer.run())
                        group.create_task(self._join_task(informer))

    async def _join_task(self, informer: Informer[Any]) -> None:
        # Not before: an informer that is not synced would make the replica unready.
        await informer.synced.wait()
        self._informers.append(informer)
        self._add_listener(informer)
        kind = informer.resource
        log.info("group_kind_found", kind=f"{kind.plural}.{kind.group}", objects=len(informer.store))

    def _add_listener(self, informer: Informer[Any]) -> None:
        self._objects.add_store(informer.resource, informer.store)
        informer.on_change(self._gangs.on_group)

    async def _list_readable(self) -> tuple[Resource[Any], ...]:
        found, forbidden = await dialects.find_readable(self._client)
        for kind, why in forbidden.items():
            name = f"{kind.plural}.{kind.group}"
            if name not in self._forbidden:
                log.warning(
                    "group_kind_not_readable", kind=name, error=why, next="grant list and watch: deploy/rbac.yaml"
                )
            self._forbidden[name] = why
        return found
