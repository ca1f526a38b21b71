"""What a user may see: as RBAC of Kubernetes says (SubjectAccessReview).

What a user may not read is neither shown nor counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from kgwe.kube.api.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kgwe.httpapi.authentication import User
    from kgwe.kube.client.client import KubeClient

ACCESS_REVIEW: Final[Resource[Any]] = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False, type=dict[str, Any]
)
_REMEMBER_S: Final = 30.0
_MOST_ANSWERS: Final = 16_384
# Questions that are asked at the same time for one request.
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Right:
    """What a user wants to do; an empty namespace: in all namespaces. `path`: of the server, instead of a resource."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    path: str = ""


class Authorizer(Protocol):
    """Tells what a user may do."""

    async def may(self, user: User, right: Right) -> bool: ...


@dataclass(frozen=True, slots=True)
class Readable:
    """The namespaces that a user may read; `everything`: also what is in no namespace."""

    everything: bool
    namespaces: frozenset[str] = frozenset()

    def covers(self, namespace: str) -> bool:
        """Whether what belongs to this namespace may be shown and counted."""
        return self.everything or namespace in self.namespaces


class AccessReviewer:
    """Asks the API server, and remembers answers for half a minute."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: OrderedDict[tuple[User, Right], tuple[float, bool]] = OrderedDict()

    async def may(self, user: User, right: Right) -> bool:
        """Whether the user has the right."""
        key = user, right
        known = self._known.get(key)
        if known is None or known[0] <= self._clock():
            answer = await self._review(user, right)
            known = self._known[key] = self._clock() + _REMEMBER_S, answer
            self._known.move_to_end(key)
            while len(self._known) > _MOST_ANSWERS:
                self._known.popitem(last=False)
        return known[1]

    async def _review(self, user: User, right: Right) -> bool:
        attributes = {"verb": right.verb, "group": right.group, "resource": right.resource}
        if right.namespace:
            attributes["namespace"] = right.namespace
        what = {"resourceAttributes": attributes}
        if right.path:
            what = {"nonResourceAttributes": {"verb": right.verb, "path": right.path}}
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra},
            **what,
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        status = (await self._client.create(ACCESS_REVIEW, body)).get("status") or {}
        return bool(status.get("allowed")) and not status.get("denied")


async def find_readable(authorizer: Authorizer, user: User, right: Right, namespaces: Iterable[str]) -> Readable:
    """Return in which of the namespaces the user has a right. One question if it has the right everywhere."""
    if await authorizer.may(user, right):
        return Readable(everything=True)
    wanted = sorted({each for each in namespaces if each})
    found: set[str] = set()
    for start in range(0, len(wanted), _AT_ONCE):
        part = wanted[start : start + _AT_ONCE]
        rights = [Right(right.verb, right.group, right.resource, namespace) for namespace in part]
        answers = await asyncio.gather(*(authorizer.may(user, each) for each in rights))
        found |= {namespace for namespace, is_allowed in zip(part, answers, strict=True) if is_allowed}
    return Readable(everything=False, namespaces=frozenset(found))
