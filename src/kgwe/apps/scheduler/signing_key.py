"""The key that decisions are signed with: in a Secret that the scheduler alone may read.

The first replica fills the Secret; writes name the version they replace, so replicas that start together end up with
one key. `current` signs. `previous` is accepted as long as it is in the Secret: to rotate, move `current` to
`previous` and delete `current`, or run `kgwe scheduler rotate-key`. Every replica notices within half a minute.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from typing import TYPE_CHECKING, Any, Final

import structlog

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.client.client import Forbidden

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.cluster.workload.signatures import Signer
    from kgwe.kube.api.core import Secret
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

NAME: Final = "kgwe-decision-key"
_CURRENT: Final = "current"
_PREVIOUS: Final = "previous"
_KEY_BYTES: Final = 32
# A shorter key could be guessed.
_LEAST_BYTES: Final = 16
_LOOK_S: Final = 30.0
_TRIES: Final = 10
_PAUSE_S: Final = 1.0


class SigningKeys:
    """Keeps a signer in step with the Secret."""

    def __init__(
        self, client: KubeClient, signer: Signer, namespace: str, *, on_change: Callable[[], None] = lambda: None
    ) -> None:
        """`on_change`: called when keys were replaced; signatures that were not valid before may be now."""
        self._client = client
        self._signer = signer
        self._namespace = namespace
        self._on_change = on_change

    async def load(self) -> bool:
        """Read the keys, and create them if there are none; returns whether they differ from those known."""
        for _ in range(_TRIES):
            try:
                return self._signer.set_keys(*await self._read_keys())
            except (errors.Conflict, errors.AlreadyExists):
                continue  # another replica was faster: its key is the one
            except Forbidden as exc:
                raise errors.Permanent(f"{exc}; apply deploy/rbac.yaml") from exc
        raise errors.Transient(f"Secret {self._namespace}/{NAME} changes all the time")

    async def wait(self) -> None:
        """Load the keys; an API server that does not answer is asked again."""
        while True:
            try:
                await self.load()
            except errors.Transient as exc:
                log.warning("keys_not_read", error=str(exc))
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def run(self) -> None:
        """Follow the Secret until cancelled. What is known stays in use while it cannot be read."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                if await self.load():
                    log.info("keys_changed")
                    self._on_change()
            except errors.KgweError as exc:
                log.warning("keys_not_read", error=str(exc))

    async def rotate(self) -> None:
        """Sign with a new key from now on; decisions signed with the last one are still accepted."""
        stored = await self._client.get(resources.SECRET, NAME, self._namespace)
        await self._write_keys(stored, _encode_keys(_new_key(), stored.data.get(_CURRENT, "")))

    async def _read_keys(self) -> list[bytes]:
        try:
            stored = await self._client.get(resources.SECRET, NAME, self._namespace)
        except errors.NotFound:
            body = _secret_body(self._lost_keys())
            stored = await self._client.create(resources.SECRET, body, self._namespace)
        if not stored.data.get(_CURRENT):
            data = self._lost_keys(stored.data.get(_PREVIOUS, ""))
            stored = await self._write_keys(stored, data)
        current = _decode_key(stored, _CURRENT)
        try:
            return [current, _decode_key(stored, _PREVIOUS)] if stored.data.get(_PREVIOUS) else [current]
        except errors.Permanent as exc:
            # Nothing is signed with it, so it keeps no replica from starting. One that knew it before still accepts it.
            log.warning("previous_key_ignored", error=str(exc))
            return [current, *(key for key in self._signer.keys if key != current)][:2]

    def _lost_keys(self, previous: str = "") -> dict[str, str]:
        """Keys for a Secret without `current`: those in use if it was lost, a new one if it was moved to `previous`."""
        known = [base64.b64encode(key).decode() for key in self._signer.keys]
        if not known or known[0] == previous:
            return _encode_keys(_new_key(), previous)
        # The Secret's own `previous` comes first: it may have been put there by hand.
        return _encode_keys(known[0], previous or "".join(known[1:2]))

    async def _write_keys(self, stored: Secret, data: dict[str, str]) -> Secret:
        """Put keys into the Secret as it was read; Conflict if it was changed since."""
        body = _secret_body(data)
        body["metadata"]["resourceVersion"] = stored.metadata.resourceVersion
        return await self._client.patch(resources.SECRET, NAME, body, self._namespace)


def _secret_body(data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME}, "type": "Opaque", "data": data}


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def _encode_keys(current: str, previous: str) -> dict[str, str]:
    return {_CURRENT: current, _PREVIOUS: previous} if previous else {_CURRENT: current}


def _decode_key(stored: Secret, name: str) -> bytes:
    try:
        key = base64.b64decode(stored.data[name], validate=True)
    except binascii.Error as exc:
        raise errors.Permanent(f"Secret {stored.metadata.key}: {name} is not base64") from exc
    if len(key) < _LEAST_BYTES:
        raise errors.Permanent(f"Secret {stored.metadata.key}: {name} is shorter than {_LEAST_BYTES} bytes")
    return key
