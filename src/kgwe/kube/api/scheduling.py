"""Slim view of PriorityClass."""

from __future__ import annotations

import msgspec

from kgwe.kube.api.meta import ObjectMeta  # noqa: TC001 - msgspec reads it at run time


class PriorityClass(msgspec.Struct, frozen=True, gc=False):
    metadata: ObjectMeta
    value: int = 0
    globalDefault: bool = False
