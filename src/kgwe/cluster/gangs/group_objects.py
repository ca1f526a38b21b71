"""Objects in which others describe gangs (PodGroup, JobSet, ...), as memberships are read from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kgwe.kube import dialects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.cluster.registry.fleet_state import FleetState
    from kgwe.kube.api.resources import Resource


class GroupObjects:
    """Stores of the watched kinds, with the topology levels of the fleet."""

    def __init__(self, fleet_state: FleetState) -> None:
        self._fleet_state = fleet_state
        self._stores: dict[Resource[Any], Mapping[str, Any]] = {}
        self._known: tuple[int, dialects.Groups] | None = None

    @property
    def stores(self) -> Mapping[Resource[Any], Mapping[str, Any]]:
        """Objects by kind and key."""
        return self._stores

    def add_store(self, kind: Resource[Any], store: Mapping[str, Any]) -> None:
        """Read memberships from the objects of this kind, too."""
        self._stores[kind] = store
        self._known = None

    def forget(self) -> None:
        """Objects changed otherwise than by a watch: read them again."""
        self._known = None

    def groups(self) -> dialects.Groups:
        """What memberships are read from; built once for every state of the nodes."""
        fleet = self._fleet_state.fleet
        if self._known is None or self._known[0] != fleet.generation:
            levels = tuple(level.name for level in fleet.tree.levels)
            found = dialects.Groups(dialects.Levels(self._fleet_state.reader.labels(), levels), self._stores)
            self._known = fleet.generation, found
        return self._known[1]
