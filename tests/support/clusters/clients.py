"""Clients of cluster tests: patient where the API server is slow, because the machine has other work.

KGWE's own processes give up after 15 s of silence and try again later. A test that asks once would fail.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import httpx2
from tests.support.patience import PATIENCE_S

from kgwe.kube.client.client import KubeClient
from kgwe.kube.transport.transport import ANYTHING, Timeouts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from kgwe.kube.transport.transport import Response, StreamingResponse, Transport

_TIMEOUTS: Final = Timeouts(connect=PATIENCE_S, read=PATIENCE_S, total=PATIENCE_S)
_PAUSE_S: Final = 0.5
#: nothing was sent
_UNSENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


def connect(kubeconfig: Path | str, *, field_manager: str = "kgwe") -> KubeClient:
    """A client that waits for minutes, and repeats what can be repeated."""
    plain = KubeClient.connect(kubeconfig, field_manager=field_manager, timeouts=_TIMEOUTS)
    return KubeClient(PatientTransport(plain.transport), field_manager=field_manager, namespace=plain.namespace)


class PatientTransport:
    """Repeats a request that the server cannot have carried out, and reads, as long as the server is not itself."""

    def __init__(self, transport: Transport, patience_s: float = PATIENCE_S) -> None:
        self._transport = transport
        self._patience_s = patience_s

    @property
    def url(self) -> str:
        return self._transport.url

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        content_type: str = "",
        accept: str = ANYTHING,
    ) -> Response:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience_s
        while True:
            is_last = loop.time() > end
            try:
                reply = await self._transport.request(
                    method, path, params=params, content=content, content_type=content_type, accept=accept
                )
            except httpx2.TransportError as exc:
                if is_last or not (method == "GET" or isinstance(exc, _UNSENT)):
                    raise
            else:
                if is_last or not _is_overloaded(method, path, reply.status_code):
                    return reply
            await asyncio.sleep(_PAUSE_S)

    def stream(
        self, path: str, *, params: Mapping[str, str], silence_s: float, accept: str = ANYTHING
    ) -> AbstractAsyncContextManager[StreamingResponse]:
        return self._transport.stream(path, params=params, silence_s=silence_s, accept=accept)

    async def close(self) -> None:
        await self._transport.close()


def _is_overloaded(method: str, path: str, status: int) -> bool:
    """Whether the server had no time for the request. An eviction is also refused with 429 by a disruption budget."""
    if status == httpx2.codes.TOO_MANY_REQUESTS:
        return not path.endswith("/eviction")
    return method == "GET" and status >= httpx2.codes.INTERNAL_SERVER_ERROR
