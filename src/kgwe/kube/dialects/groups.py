"""Objects that memberships are read from, looked up by name in the caches of the watched kinds.

A store is an informer's or any mapping from `namespace/name` to the object, as its slim struct or as plain JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgwe.kube.dialects.membership import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kgwe.kube.api import core
    from kgwe.kube.api.meta import ObjectMeta, OwnerReference
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.dialects.levels import Levels

# A pod's Job, its JobSet, and the object that created the JobSet.
_HIGHEST: Final = 4


class Groups:
    """All group objects of a cluster, and the names of its levels."""

    def __init__(self, levels: Levels, stores: Mapping[Resource[Any], Mapping[str, Any]]) -> None:
        self.levels = levels
        self._stores = stores
        self._kinds = {(resource.group, resource.kind): resource for resource in reversed(list(stores))}

    def find(self, namespace: str, name: str, *kinds: Resource[Any]) -> Any:
        """The object of that name, of the first kind that has one; None when there is none."""
        for kind in kinds:
            key = f"{namespace}/{name}" if kind.namespaced else name
            found = self._stores.get(kind, {}).get(key)
            if found is not None:
                return _as_struct(found, kind)
        return None

    def get(self, namespace: str, name: str, *kinds: Resource[Any]) -> Any:
        """As `find`; the gang waits for an object that does not exist."""
        found = self.find(namespace, name, *kinds)
        if found is None:
            kind = kinds[0]
            why = "" if any(each in self._stores for each in kinds) else ", and this cluster does not serve that kind"
            raise Unreadable(f"{kind.kind} {namespace}/{name} of {kind.group} does not exist{why}", waits=True)
        return found

    def list_objects(self, kind: Resource[Any]) -> Iterator[Any]:
        for found in self._stores.get(kind, {}).values():
            yield _as_struct(found, kind)

    def owners(self, pod: core.Pod) -> Iterator[tuple[Resource[Any], Any]]:
        """The objects that manage the pod, the nearest first, as far as they are known."""
        reference, namespace = pod.metadata.controller, pod.metadata.namespace
        for _ in range(_HIGHEST):
            owner = self._find_owner(reference, namespace)
            if owner is None:
                return
            yield owner
            metadata: ObjectMeta = owner[1].metadata
            reference = metadata.controller

    def _find_owner(self, reference: OwnerReference | None, namespace: str) -> tuple[Resource[Any], Any] | None:
        if reference is None:
            return None
        kind = self._kinds.get((reference.apiVersion.partition("/")[0], reference.kind))
        if kind is None:
            return None
        found = self.find(namespace, reference.name, kind)
        # An object of the same name with another uid is not the owner.
        return None if found is None or found.metadata.uid != reference.uid else (kind, found)


def _as_struct(found: Any, kind: Resource[Any]) -> Any:
    if isinstance(found, kind.type):
        return found
    try:
        return msgspec.convert(found, kind.type)
    except msgspec.ValidationError as exc:
        raise Unreadable(f"a {kind.kind} of {kind.group} cannot be read: {exc}") from exc
