"""Certificates in Secrets, files and the webhook configuration, on an API server in memory."""

from __future__ import annotations

import base64
import datetime as dt
import ssl
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fakes.memory_api import MemoryApi

from kgwe import errors
from kgwe.apps.webhook.keeper import CertificateKeeper
from kgwe.apps.webhook.metrics import Metrics
from kgwe.apps.webhook.settings import Settings
from kgwe.certificates import authority
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.telemetry.tls import Files

if TYPE_CHECKING:
    from pathlib import Path

NOW = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
SYSTEM = "kgwe-system"


class Bed:
    """Two replicas of the webhook with one clock."""

    def __init__(self, folder: Path) -> None:
        self.now = NOW
        self.client = KubeClient(MemoryApi())
        self.replicas = [self._make(folder / name) for name in ("one", "two")]

    def _make(self, folder: Path) -> CertificateKeeper:
        settings = Settings(
            cert_dir=str(folder), authority_seconds=9000.0, certificate_seconds=900.0, announce_seconds=60.0
        )
        return CertificateKeeper(self.client, settings, Metrics(), lambda: self.now)

    async def keep(self) -> None:
        for each in self.replicas:
            await each.keep()

    async def secret(self, name: str) -> dict[str, bytes]:
        found = await self.client.get(resources.SECRET, name, SYSTEM)
        return {key: base64.b64decode(text) for key, text in found.data.items()}

    async def bundle(self) -> bytes:
        found = await self.client.get(resources.MUTATING_WEBHOOK_CONFIGURATION, "kgwe-webhook")
        return base64.b64decode(found["webhooks"][0]["clientConfig"]["caBundle"])


async def make_bed(folder: Path) -> Bed:
    bed = Bed(folder)
    hook: dict[str, Any] = {"name": "pods.kgwe.nvidia.io", "clientConfig": {"service": {"name": "kgwe-webhook"}}}
    body = {"metadata": {"name": "kgwe-webhook"}, "webhooks": [hook]}
    await bed.client.create(resources.MUTATING_WEBHOOK_CONFIGURATION, body)
    return bed


async def test_replicas_share_one_authority_and_one_certificate(tmp_path: Path) -> None:
    bed = await make_bed(tmp_path)
    await bed.keep()
    assert (tmp_path / "one" / "tls.crt").read_bytes() == (tmp_path / "two" / "tls.crt").read_bytes()
    assert await bed.bundle() == (await bed.secret("kgwe-ca"))["ca.crt"]
    for name in ("kgwe-webhook-tls", "kgwe-extender-tls", "kgwe-agent-tls"):
        assert {"tls.crt", "tls.key", "ca.crt"} == (await bed.secret(name)).keys()
    Files(tmp_path / "one" / "tls.crt", tmp_path / "one" / "tls.key").context()
    assert (tmp_path / "one" / "tls.key").stat().st_mode & 0o077 == 0


async def test_every_certificate_in_use_is_trusted_by_the_bundle_of_the_step_before(tmp_path: Path) -> None:
    """Over many rotations: what the API server trusts always covers what the replicas serve with."""
    bed = await make_bed(tmp_path)
    await bed.keep()
    served: set[bytes] = set()
    for _ in range(200):
        trusted = await bed.bundle()
        bed.now += dt.timedelta(seconds=61)
        await bed.keep()
        used = (tmp_path / "one" / "tls.crt").read_bytes()
        served.add(used)
        context = ssl.create_default_context(cadata=trusted.decode())
        assert any(_is_signed_by(used, each) for each in _split(trusted)), "served before it was trusted"
        assert context.cert_store_stats()["x509_ca"] <= 3
    assert len(served) > 15


async def test_a_secret_that_was_damaged_is_replaced(tmp_path: Path) -> None:
    bed = await make_bed(tmp_path)
    await bed.keep()
    for name in ("kgwe-webhook-tls", "kgwe-ca"):
        broken = {"data": {"tls.crt": "!", "current.crt": "AAAA"}}
        await bed.client.patch(resources.SECRET, name, broken, SYSTEM)
    await bed.keep()
    assert _is_signed_by((tmp_path / "one" / "tls.crt").read_bytes(), _split(await bed.bundle())[0])


def _split(bundle: bytes) -> list[bytes]:
    end = b"-----END CERTIFICATE-----\n"
    return [part + end for part in bundle.split(end) if part]


def _is_signed_by(certificate: bytes, issuer: bytes) -> bool:
    from kgwe.certificates.authority import is_issued_by  # noqa: PLC0415 - a name of the test's own

    return is_issued_by(certificate, issuer)


def _encode(data: dict[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


async def _break(bed: Bed, name: str, **changes: bytes) -> None:
    keys = {key.replace("_", "."): value for key, value in changes.items()}
    await bed.client.patch(resources.SECRET, name, {"data": _encode(keys)}, SYSTEM)


@pytest.mark.parametrize("fault", ["garbage", "another", "leaf"])
async def test_an_authority_that_cannot_sign_is_replaced(tmp_path: Path, fault: str) -> None:
    bed = await make_bed(tmp_path)
    await bed.keep()
    other = authority.make_authority("other", NOW, dt.timedelta(days=1))
    leaf = authority.issue(other, "leaf", ("a",), NOW, dt.timedelta(days=1))
    changes = {
        "garbage": {"current_key": b"garbage"},
        "another": {"current_key": other.key},
        "leaf": {"current_crt": leaf.certificate, "current_key": leaf.key},
    }
    await _break(bed, "kgwe-ca", **changes[fault])
    await bed.keep()
    files = [Files(each.folder / "tls.crt", each.folder / "tls.key") for each in bed.replicas]
    for each in files:
        each.context()
        assert authority.is_issued_by(each.certificate.read_bytes(), await bed.bundle())
    assert authority.may_sign(await bed.bundle())


async def test_what_is_left_of_damaged_secrets_stays_in_use(tmp_path: Path) -> None:
    bed = await make_bed(tmp_path)
    await bed.keep()
    before = await bed.bundle()
    announced = {"earlier_crt": b"garbage", "announced-at": b"2026-11-01T00:00:00"}
    await _break(bed, "kgwe-ca", **announced)
    await _break(bed, "kgwe-webhook-tls", tls_key=authority.make_authority("x", NOW, dt.timedelta(days=1)).key)
    await bed.keep()
    assert await bed.bundle() == before
    for each in bed.replicas:
        Files(each.folder / "tls.crt", each.folder / "tls.key").context()


async def test_a_folder_that_cannot_be_written_does_not_end_the_process(tmp_path: Path) -> None:
    bed = await make_bed(tmp_path)
    (tmp_path / "one").write_text("a file, not a folder")
    with pytest.raises(errors.Transient, match="cannot write certificates"):
        await bed.replicas[0].keep()
