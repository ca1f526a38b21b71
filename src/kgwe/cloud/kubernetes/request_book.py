"""Launch requests that were begun and ended, in a ConfigMap: objects that are gone tell nothing about their request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.cloud.provider import LaunchError
from kgwe.cloud.provider import LaunchErrorKind as Kind
from kgwe.kube.api import resources
from kgwe.kube.client.client import Forbidden

if TYPE_CHECKING:
    from kgwe.kube.client.client import KubeClient

OPEN: Final = "open"
DONE: Final = "done"
_MOST: Final = 500


class RequestBook:
    """Request -> open or done. Only the leader writes."""

    def __init__(self, client: KubeClient, name: str, namespace: str) -> None:
        self._client = client
        self._name = name
        self._namespace = namespace

    async def read(self, request_id: str) -> str:
        """Return open, done, or an empty text for a request that was never begun."""
        return (await self._read_all()).get(request_id, "").partition(" ")[0]

    async def write(self, request_id: str, state: str, now: float) -> None:
        """Note a state. The oldest requests that are done make room."""
        there = await self._read_all()
        done = sorted((text.partition(" ")[2], name) for name, text in there.items() if text.startswith(DONE))
        data: dict[str, str | None] = dict.fromkeys(name for _, name in done[: max(len(there) - _MOST, 0)])
        data[request_id] = f"{state} {int(now):012d}"
        try:
            await self._client.patch(resources.CONFIG_MAP, self._name, {"data": data}, self._namespace)
        except errors.NotFound:
            body = {"metadata": {"name": self._name, "namespace": self._namespace}, "data": data}
            await self._client.create(resources.CONFIG_MAP, body, self._namespace)

    async def _read_all(self) -> dict[str, str]:
        try:
            return (await self._client.get(resources.CONFIG_MAP, self._name, self._namespace)).data
        except errors.NotFound:
            return {}


def translate_error(error: errors.KgweError, what: str) -> LaunchError:
    """Return an error of the API server as one of a cloud."""
    after = error.retry_after_s if isinstance(error, errors.Transient) else None
    if isinstance(error, Forbidden):
        kind = Kind.AUTHENTICATION
    elif isinstance(error, errors.NotFound):
        return LaunchError(Kind.BAD_TEMPLATE, f"{what} is not installed in this cluster: {error}")
    elif isinstance(error, errors.Permanent):
        kind = Kind.BAD_TEMPLATE
    elif after is not None:
        kind = Kind.THROTTLED
    else:
        kind = Kind.TRANSIENT
    return LaunchError(kind, str(error), retry_after_s=after)
