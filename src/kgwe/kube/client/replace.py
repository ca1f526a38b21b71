"""Merge patches to objects whose bytes we have: carried out here, and written whole.

A patch costs the API server more than a replacement in protobuf: it turns the object into JSON, merges, and reads the
result again. What is written is the object as the watch showed it, every field of it, known here
or not; a concurrent write is not overwritten, because the version is named. Then, and when the bytes are not at
hand, the patch is sent as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import structlog

from kgwe import errors
from kgwe.kube.client.client import Forbidden

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import KubeObject

log = structlog.get_logger(__name__)

T = TypeVar("T", bound="KubeObject")


class ProtobufReplacer(Generic[T]):
    """Writes to objects of one kind; `bytes_of`: that state of an object in protobuf, if it is at hand."""

    def __init__(self, client: KubeClient, resource: Resource[T], bytes_of: Callable[[T], bytes]) -> None:
        self._client = client
        self._resource = resource
        self._bytes_of = bytes_of
        self._forbidden = False
        #: how many were written whole
        self.replaced = 0

    async def merge(self, obj: T, patch: Mapping[str, Any], *, as_known: bool = True) -> None:
        """Carry out a merge patch; `as_known` is False if the object was written to since it was read."""
        if not (as_known and await self._try_replace(obj, patch)):
            await self._client.patch(self._resource, obj.metadata.name, patch, obj.metadata.namespace)

    async def _try_replace(self, obj: T, patch: Mapping[str, Any]) -> bool:
        raw = b"" if self._forbidden else self._bytes_of(obj)
        if not raw:
            return False
        from kgwe.kube.transport import protobuf_patch  # noqa: PLC0415 - there where an informer has such bytes

        try:
            whole = protobuf_patch.merge_patch(self._resource, raw, patch)
            await self._client.replace_message(self._resource, obj.metadata.name, whole, obj.metadata.namespace)
        except (errors.Conflict, errors.Permanent) as exc:
            if isinstance(exc, Forbidden):  # for all of them: do not ask again and again
                log.warning("replacing_forbidden", resource=self._resource.plural, error=str(exc))
                self._forbidden = True
            return False
        self.replaced += 1
        return True
