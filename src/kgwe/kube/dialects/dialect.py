"""What a dialect declares and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.api import core
    from kgwe.kube.dialects.groups import Groups
    from kgwe.kube.dialects.membership import Key, Membership


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way of declaring that pods belong together.

    Most pods belong to no gang, so a pod is asked about its gang only if it has a key that some dialect declares.
    """

    name: str
    keys: frozenset[str]
    """Keys of labels and annotations by which a pod may use this dialect: whole keys, or what they begin with up to the
    slash."""
    key: Callable[[core.Pod, Groups], Key | None]
    """The gang the pod names in this dialect; None if it does not use it."""
    member: Callable[[core.Pod, Key, Groups], Membership | None]
    """Its membership; None when the group turns out to be no gang. May raise Unreadable."""
    in_spec: Callable[[core.Pod], bool] | None = None
    """Whether a field of the pod's spec uses this dialect, for those that have one."""

    def __post_init__(self) -> None:
        if not self.keys and self.in_spec is None:
            raise errors.InvariantBroken(f"dialect {self.name} declares no keys, so no pod would ever use it")
