"""Keeps KGWE's certificates current: the authority and each server's certificate, in Secrets and files.

All replicas do it; writes name the version they replace, so replicas that act together end up with one authority. The
caBundle of the webhook configuration has every authority that is trusted, before any server uses it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import datetime as dt
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from kgwe import errors
from kgwe.apps.webhook.settings import read_hosts
from kgwe.certificates import authority, rotation
from kgwe.certificates.authority import Pair
from kgwe.certificates.rotation import Authorities, Lifetimes
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.webhook.metrics import Metrics
    from kgwe.apps.webhook.settings import Settings
    from kgwe.kube.api.core import Secret
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

AUTHORITY: Final = "kgwe-ca"
OWN: Final = "kgwe-webhook"
_CRT, _KEY, _CA = "tls.crt", "tls.key", "ca.crt"
_ANNOUNCED: Final = "announced-at"
_TRIES: Final = 5
_FIRST_PAUSE_S: Final = 1.0


def _utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class CertificateKeeper:
    """Issues, replaces and distributes certificates."""

    def __init__(
        self, client: KubeClient, settings: Settings, metrics: Metrics, now: Callable[[], dt.datetime] = _utc_now
    ) -> None:
        self._client = client
        self._settings = settings
        self._metrics = metrics
        self._now = now
        self._lifetimes = Lifetimes(
            dt.timedelta(seconds=settings.authority_seconds),
            dt.timedelta(seconds=settings.certificate_seconds),
            settings.renew_at,
            dt.timedelta(seconds=settings.announce_seconds),
        )
        self.folder = Path(settings.cert_dir)

    async def wait_first(self) -> None:
        """Return when the webhook has a certificate; an API server that does not answer is asked again."""
        while True:
            try:
                await self.keep()
            except errors.KgweError as exc:
                log.warning("certificates_not_read", error=str(exc))
                await asyncio.sleep(_FIRST_PAUSE_S)
            else:
                return

    async def run(self) -> None:
        """Look again and again, until cancelled. What is known stays in use while the API server does not answer."""
        while True:
            await asyncio.sleep(self._settings.check_seconds)
            try:
                with self._metrics.rounds.measure():
                    await self.keep()
            except errors.KgweError as exc:
                self._metrics.failures.inc()
                log.warning("certificates_not_kept", error=str(exc))

    async def keep(self) -> None:
        """Take the steps that are due now."""
        known = await self._keep_authority()
        # Clients trust a new authority before anything that it signed is in use.
        await self._publish_bundle(known.bundle)
        for entry in self._settings.certificates:
            name, hosts = read_hosts(entry)
            pair = await self._keep_certificate(name, hosts, known)
            self._metrics.expires.labels(name).set(authority.load(pair.certificate).not_valid_after_utc.timestamp())
            if name == OWN:
                try:
                    self._write_files(pair, known.bundle)
                except OSError as exc:
                    raise errors.Transient(f"cannot write certificates to {self.folder}: {exc}") from exc

    async def _keep_authority(self) -> Authorities:
        for _ in range(_TRIES):
            stored = await self._read(AUTHORITY)
            known = _read_authorities(stored) if stored is not None else None
            now = self._now()
            new = (
                rotation.start("kgwe", now, self._lifetimes)
                if known is None
                else rotation.advance(known, "kgwe", now, self._lifetimes)
            )
            if new == known:
                return new
            with contextlib.suppress(errors.Conflict):  # another replica was faster: its authority is the one
                await self._write(AUTHORITY, stored, _encode_authorities(new))
                self._metrics.issued.labels(AUTHORITY).inc()
                log.info("authority_changed", announced=new.next is not None)
                return new
        raise errors.Transient(f"Secret {AUTHORITY} changes all the time")

    async def _keep_certificate(self, name: str, hosts: tuple[str, ...], known: Authorities) -> Pair:
        secret = f"{name}-tls"
        for _ in range(_TRIES):
            stored, now = await self._read(secret), self._now()
            pair = _read_pair(stored) if stored is not None else None
            bundle = _decode(stored, _CA) if stored is not None else b""
            is_usable = rotation.is_usable(pair, known, hosts, now, self._lifetimes)
            if pair is not None and is_usable and bundle == known.bundle:
                return pair
            if pair is None or not is_usable:
                pair = authority.issue(known.current, name, hosts, now, self._lifetimes.others)
                self._metrics.issued.labels(name).inc()
                log.info("certificate_issued", name=name)
            with contextlib.suppress(errors.Conflict):
                body = {_CRT: pair.certificate, _KEY: pair.key, _CA: known.bundle}
                await self._write(secret, stored, body, kind="kubernetes.io/tls")
                return pair
        raise errors.Transient(f"Secret {secret} changes all the time")

    async def _publish_bundle(self, bundle: bytes) -> None:
        """Write the bundle into the webhook configurations that have another one."""
        for name in (self._settings.webhook_configuration, self._settings.seat_webhook_configuration):
            if name:
                await self._publish_in(name, bundle)

    async def _publish_in(self, name: str, bundle: bytes) -> None:
        kind = resources.MUTATING_WEBHOOK_CONFIGURATION
        try:
            found = await self._client.get(kind, name)
        except errors.NotFound:
            return
        wanted = base64.b64encode(bundle).decode()
        hooks = found.get("webhooks") or []
        changes: list[dict[str, Any]] = [
            {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": wanted}
            for number, hook in enumerate(hooks)
            if hook.get("clientConfig", {}).get("caBundle") != wanted
        ]
        if changes:
            test = {"op": "test", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]}
            with contextlib.suppress(errors.Conflict):
                await self._client.patch(kind, name, [test, *changes], kind="application/json-patch+json")

    def _write_files(self, pair: Pair, bundle: bytes) -> None:
        """Replace the files of this replica. The server ignores a key without its certificate."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, data in ((_KEY, pair.key), (_CRT, pair.certificate), (_CA, bundle)):
            path = self.folder / name
            if path.exists() and path.read_bytes() == data:
                continue
            fresh = path.with_suffix(f"{path.suffix}.new")
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
            fresh.replace(path)

    # --- Secrets ----------------------------------------------------------------------------------------

    async def _read(self, name: str) -> Secret | None:
        try:
            return await self._client.get(resources.SECRET, name, self._settings.namespace)
        except errors.NotFound:
            return None

    async def _write(self, name: str, stored: Secret | None, data: dict[str, bytes], kind: str = "Opaque") -> None:
        """Create or replace the Secret as it was read; Conflict if it was changed since."""
        encoded: dict[str, str | None] = {key: base64.b64encode(value).decode() for key, value in data.items()}
        head: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "type": kind}
        if stored is None:
            body = head | {"metadata": {"name": name}, "data": encoded}
            await self._client.create(resources.SECRET, body, self._settings.namespace)
            return
        gone: dict[str, str | None] = dict.fromkeys(stored.data.keys() - encoded.keys())
        meta = {"resourceVersion": stored.metadata.resourceVersion}
        patch = {"metadata": meta, "data": encoded | gone}
        await self._client.patch(resources.SECRET, name, patch, self._settings.namespace)


def _decode(stored: Secret, name: str) -> bytes:
    try:
        return base64.b64decode(stored.data.get(name, ""), validate=True)
    except binascii.Error:
        return b""


def _read_pair(stored: Secret, prefix: str = "tls") -> Pair | None:
    """Return a certificate with its key; None if they cannot be read or do not belong together."""
    pair = Pair(_decode(stored, f"{prefix}.crt"), _decode(stored, f"{prefix}.key"))
    return pair if authority.is_whole(pair) else None


def _read_authorities(stored: Secret) -> Authorities | None:
    """Return the authorities of the Secret; None if it has none that can be used."""
    current, following = (_read_authority(stored, prefix) for prefix in ("current", "next"))
    if current is None:
        return None
    # Each part keeps the line break before its last line.
    parts = [part + _END for part in _decode(stored, "earlier.crt").split(_END) if part.strip()]
    earlier = tuple(part for part in parts if authority.may_sign(part))
    text = _decode(stored, _ANNOUNCED).decode("ascii", "replace")
    try:
        announced_at = dt.datetime.fromisoformat(text)
    except ValueError:
        return Authorities(current, following, None, earlier)
    if announced_at.tzinfo is None:
        announced_at = announced_at.replace(tzinfo=dt.UTC)
    return Authorities(current, following, announced_at, earlier)


def _read_authority(stored: Secret, prefix: str) -> Pair | None:
    pair = _read_pair(stored, prefix)
    return pair if pair is not None and authority.may_sign(pair.certificate) else None


_END: Final = b"-----END CERTIFICATE-----\n"


def _encode_authorities(known: Authorities) -> dict[str, bytes]:
    found = {"current.crt": known.current.certificate, "current.key": known.current.key, _CA: known.bundle}
    if known.next is not None:
        found |= {"next.crt": known.next.certificate, "next.key": known.next.key}
    if known.announced_at is not None:
        found[_ANNOUNCED] = known.announced_at.isoformat().encode()
    return found | ({"earlier.crt": b"".join(known.earlier)} if known.earlier else {})
