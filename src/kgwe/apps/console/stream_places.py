"""Places for open streams: limits for each user, and for all service accounts of a namespace.

When an address, or the server, has no place left, the user with the most streams there loses its oldest one. All
service accounts of a namespace count as one user for that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from kgwe.httpapi import problems
from kgwe.httpapi.connections import MOST_CONNECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

OF_USER: Final = 12
OF_NAMESPACE: Final = 48
#: many users may share the address of a proxy
OF_ADDRESS: Final = 100
#: other requests need connections, too
OF_ALL: Final = MOST_CONNECTIONS * 3 // 4
_RETRY_S: Final = 15
_SERVICE_ACCOUNT: Final = "system:serviceaccount:"


class Place:
    """The place of one open stream, and what is sent to it; None ends it."""

    def __init__(self, user: str, address: str) -> None:
        self.user = user
        self.address = address
        self.holder = find_holder(user)
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()


class StreamPlaces:
    """The places that are taken."""

    def __init__(self) -> None:
        # The oldest first.
        self._taken: dict[Place, None] = {}

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, user: str, address: str) -> Place:
        """Return a place; raise a Problem with 429 if the user, or its namespace, has too many."""
        place = Place(user, address)
        if _count(each.user == user for each in self._taken) >= OF_USER:
            raise problems.too_many(_RETRY_S)
        is_service = user.startswith(_SERVICE_ACCOUNT)
        if is_service and _count(each.holder == place.holder for each in self._taken) >= OF_NAMESPACE:
            raise problems.too_many(_RETRY_S)
        self._taken[place] = None
        near = [each for each in self._taken if each.address == address]
        if len(near) > OF_ADDRESS:
            self._end_one(near)
        if len(self._taken) > OF_ALL:
            self._end_one(list(self._taken))
        return place

    def release(self, place: Place) -> None:
        """Give a place back; also one that was lost."""
        self._taken.pop(place, None)

    def _end_one(self, places: list[Place]) -> None:
        held = Counter(each.holder for each in places)
        # Of equals, the holder of the oldest stream.
        loser = max(places, key=lambda each: held[each.holder])
        self.release(loser)
        loser.queue.put_nowait(None)


def find_holder(user: str) -> str:
    """Return who the streams of a user count for: the namespace of a service account, else the user."""
    if not user.startswith(_SERVICE_ACCOUNT):
        return user
    return user.rpartition(":")[0]


def _count(found: Iterable[bool]) -> int:
    return sum(found)
