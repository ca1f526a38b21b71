"""KGWE's own dialect: `kgwe.nvidia.io/gang` and related annotations, for pods of any controller."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from kgwe.kube.dialects import requests, values
from kgwe.kube.dialects.dialect import Dialect
from kgwe.kube.dialects.membership import Key, Membership, Size, Unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.kube.api import core
    from kgwe.kube.dialects.groups import Groups
    from kgwe.kube.dialects.requests import Said

_NAME: Final = "kgwe"
_GANG: Final = requests.GANG
_SIZE: Final = requests.OWN + "gang-size"
_LEAST: Final = requests.OWN + "gang-min-size"
_ROLE: Final = requests.OWN + "gang-role"
_RANK: Final = requests.OWN + "rank"
# Instead of a name: the pods of one owner are a gang.
_OF_OWNER: Final = "true"


def _read_key(pod: core.Pod, groups: Groups) -> Key | None:
    name = requests.read_annotations(pod, groups)(_GANG)
    return Key(pod.metadata.namespace, "kgwe.nvidia.io", name) if name not in ("", "false", _OF_OWNER) else None


def make_dialect(by_owner: Sequence[Dialect]) -> Dialect:
    """Our own dialect. The size of a gang that does not declare one is read from its pods' owner, by `by_owner`."""

    def member(pod: core.Pod, key: Key, groups: Groups) -> Membership:
        text = requests.read_annotations(pod, groups)
        size = _parse_size(text)
        made = _read_owner(pod, groups, by_owner) if size is None else None
        if size is None and (made is None or made.size is None):
            raise Unreadable(f"gang {key.title} does not say how many pods it has: add {_SIZE}")
        rank = text(_RANK)
        own = made or Membership(key, _NAME, size, index=values.read_index(pod))
        return dataclasses.replace(
            own,
            key=key,
            dialect=_NAME,
            role=text(_ROLE) or own.role,
            index=values.read_number(rank, _RANK, least=0) if rank else own.index,
        )

    return Dialect(_NAME, frozenset({_GANG}), _read_key, member)


def _parse_size(text: Said) -> Size | None:
    most, least = text(_SIZE), text(_LEAST)
    if not (most or least):
        return None
    if not most:
        return Size(values.read_number(least, _LEAST))
    pods = values.read_number(most, _SIZE)
    needed = values.read_number(least, _LEAST) if least else pods
    if needed > pods:
        raise Unreadable(f"{_LEAST} is {needed} and {_SIZE} only {pods}: swap them")
    return Size(needed, pods)


def _read_owner(pod: core.Pod, groups: Groups, by_owner: Sequence[Dialect]) -> Membership | None:
    """The pod's membership in the gang of its owner; None when no dialect knows the owner."""
    for dialect in by_owner:
        key = dialect.key(pod, groups)
        if key is not None:
            return dialect.member(pod, key, groups)
    return None


# --- what is left ---------------------------------------------------------------------------------------


def _nameless_key(pod: core.Pod, groups: Groups) -> Key | None:
    """A pod that asks for a gang of its owner's pods, where no dialect knows the owner."""
    if requests.read_annotations(pod, groups)(_GANG) != _OF_OWNER:
        return None
    return Key(pod.metadata.namespace, "Pod", pod.metadata.name)


def _reject_nameless(pod: core.Pod, _: Key, __: Groups) -> Membership:
    raise Unreadable(
        f'{_GANG} is "true", and pod {pod.metadata.name} has no owner whose pods KGWE could count: write the '
        f"name of the gang, and {_SIZE}"
    )


NAMELESS: Final = Dialect(_NAME, frozenset({_GANG}), _nameless_key, _reject_nameless)


def _single_key(pod: core.Pod, groups: Groups) -> Key | None:
    """A pod of no gang with topology requests of its own."""
    return Key(pod.metadata.namespace, "Pod", pod.metadata.name) if requests.has_requests(pod, groups) else None


def _read_single(_: core.Pod, key: Key, __: Groups) -> Membership:
    return Membership(key, SINGLE.name, Size(1, 1))


SINGLE: Final = Dialect("pod", requests.KEYS, _single_key, _read_single)
