"""What a dialect has to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.api import core
    from kgwe.kube.dialects.groups import Groups
    from kgwe.kube.dialects.membership import Key, Membership


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way of saying that pods belong together."""

    name: str
    key: Callable[[core.Pod, Groups], Key | None]
    """The gang the pod names in this dialect, if it speaks it."""
    member: Callable[[core.Pod, Key, Groups], Membership | None]
    """Its place there; None when the group turns out to be no gang. May raise Unreadable."""
