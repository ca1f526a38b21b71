"""ResourceQuotas: whether a namespace may create so many more pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.kube.api.meta import ObjectMeta  # noqa: TC001 - read by msgspec when it decodes
from kgwe.kube.api.resources import Resource
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_COUNT: Final = "count/pods"
_REQUESTS: Final = "requests."


class _Status(msgspec.Struct, frozen=True, gc=False):
    hard: dict[str, str] = {}
    used: dict[str, str] = {}


class Quota(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    status: _Status = _Status()


QUOTAS: Final = Resource("", "v1", "resourcequotas", "ResourceQuota", namespaced=True, type=Quota)


def has_room(quotas: Iterable[Quota], namespace: str, wanted: Mapping[str, int]) -> bool:
    """Whether the quotas of a namespace leave room for pods that take `wanted` together.

    Scopes are not read: every quota counts. A number that cannot be read leaves no room.
    """
    return all(
        _leaves_room(quota.status, name, wanted)
        for quota in quotas
        if quota.metadata.namespace == namespace
        for name in quota.status.hard
    )


def _leaves_room(status: _Status, name: str, wanted: Mapping[str, int]) -> bool:
    plain = amounts.PODS if name == _COUNT else name.removeprefix(_REQUESTS)
    more = wanted.get(plain, 0)
    if not more:
        return True
    try:
        hard, used = (amounts.parse_one(plain, text) for text in (status.hard[name], status.used.get(name, "0")))
    except errors.KgweError:
        return False
    return used + more <= hard
