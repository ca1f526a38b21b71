"""ResourceQuotas as the cost engine reads them: how many GPUs a namespace may use and does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta  # noqa: TC001 - read by msgspec when it decodes
from kgwe.model.units import amounts

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEYS: Final = (f"requests.{amounts.GPU}", f"limits.{amounts.GPU}")
_MOST_GPUS: Final = 1_000_000


class _Status(msgspec.Struct, frozen=True, gc=False):
    hard: dict[str, str] = {}
    used: dict[str, str] = {}


class Quota(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    status: _Status = _Status()


QUOTAS: Final = resources.Resource("", "v1", "resourcequotas", "ResourceQuota", namespaced=True, type=Quota)


def sum_unused(quotas: Iterable[Quota]) -> dict[str, int]:
    """Return the unused GPUs of each namespace: of several quotas, the one that leaves the least."""
    found: dict[str, int] = {}
    for quota in quotas:
        for key in _KEYS:
            hard, used = _parse(quota.status.hard.get(key)), _parse(quota.status.used.get(key, "0"))
            if hard is None or used is None:
                continue
            name = quota.metadata.namespace
            unused = min(max(hard - used, 0), _MOST_GPUS)
            found[name] = min(found.get(name, unused), unused)
    return {name: gpus for name, gpus in found.items() if gpus}


def _parse(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return amounts.parse_one(amounts.GPU, text)
    except errors.KgweError:
        return None
