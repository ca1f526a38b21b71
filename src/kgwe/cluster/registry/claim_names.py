"""Which ResourceClaims exist, as far as the cluster serves them and they are watched."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.kube.api.resource import ResourceClaim
    from kgwe.kube.client.informer import Change


class ClaimNames:
    """Keys of the ResourceClaims that exist."""

    def __init__(self) -> None:
        self.is_watched = False
        self._keys: set[str] = set()

    def update(self, change: Change[ResourceClaim]) -> bool:
        """Note a created or deleted claim; returns whether it is one of these."""
        was_there = change.key in self._keys
        if change.new is None:
            self._keys.discard(change.key)
        else:
            self._keys.add(change.key)
        return was_there != (change.new is not None)

    def find_missing(self, keys: Iterable[str]) -> str:
        """The first of these claims that does not exist; empty: all exist, or nothing is known."""
        return next((key for key in keys if key not in self._keys), "") if self.is_watched else ""
