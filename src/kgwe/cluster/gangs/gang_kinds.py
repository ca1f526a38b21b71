"""Watches the kinds in which others describe gangs: those that the cluster serves, and those it comes to serve later.

None of them is needed: a kind that may not be read is left out, with a word on which right is missing, and asked about
again like one that is not served yet. Nobody has to restart KGWE after installing JobSet or Volcano.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from kgwe import errors
from kgwe.kube import dialects
from kgwe.kube.client.informer import Informer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.cluster.gangs.external_gangs import Gangs
    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)


class GroupKinds:
    """The informers of one replica, of which those of group kinds are added here."""

    def __init__(
        self,
        client: KubeClient,
        state: ClusterState,
        gangs: Gangs,
        informers: list[Informer[Any]],
        *,
        look_again_s: float,
    ) -> None:
        self._client = client
        self._state = state
        self._gangs = gangs
        self._informers = informers
        self._look_again_s = look_again_s
        self._stores: dict[Resource[Any], Mapping[str, Any]] = {}
        self._forbidden: dict[str, str] = {}  # kind -> why, as far as it was said
        self._known: dialects.Groups | None = None
        self._known_for = -1
        gangs.lookup = self._groups

    async def find(self) -> None:
        """Before anything runs: what the cluster serves now."""
        for kind in await self._readable():
            informer = next((each for each in self._informers if each.resource == kind), None)
            if informer is None:
                informer = Informer(self._client, kind)
                # Before the pods: a gang's first pod is then read with its group in sight.
                self._informers.insert(0, informer)
            self._listen(informer)

    async def run(self) -> None:
        """Look again now and then; ends only with an error of what it started."""
        coming: set[Resource[Any]] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._look_again_s)
                try:
                    found = await self._readable()
                except errors.KgweError as exc:
                    log.warning("group_kinds_not_found_out", error=str(exc), retry_in_s=self._look_again_s)
                    continue
                for kind in found:
                    if kind not in self._stores and kind not in coming:
                        coming.add(kind)
                        informer: Informer[Any] = Informer(self._client, kind)
                        group.create_task(informer.run())
                        group.create_task(self._join(informer))

    async def _join(self, informer: Informer[Any]) -> None:
        # Not before: who does not know a kind yet that has just come is not behind.
        await informer.synced.wait()
        self._informers.append(informer)
        self._listen(informer)
        kind = informer.resource
        log.info("group_kind_found", kind=f"{kind.plural}.{kind.group}", objects=len(informer.store))

    def _listen(self, informer: Informer[Any]) -> None:
        self._stores[informer.resource] = informer.store
        self._known = None
        informer.on_change(self._gangs.on_group)

    async def _readable(self) -> tuple[Resource[Any], ...]:
        found, forbidden = await dialects.readable(self._client)
        for kind, why in forbidden.items():
            name = f"{kind.plural}.{kind.group}"
            if name not in self._forbidden:
                log.warning(
                    "group_kind_not_readable", kind=name, error=why, next="grant list and watch: deploy/rbac.yaml"
                )
            self._forbidden[name] = why
        return found

    def _groups(self) -> dialects.Groups:
        fleet = self._state.fleet
        if self._known_for != fleet.generation or self._known is None:
            levels = dialects.Levels(self._state.reader.labels(), tuple(level.name for level in fleet.tree.levels))
            self._known = dialects.Groups(levels, self._stores)
            self._known_for = fleet.generation
        return self._known
