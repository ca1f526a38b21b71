"""Webhooks for the benchmark: the real process, servers with faults, and the configuration that points at them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import httpx2

from kgwe import errors
from kgwe.certificates import authority
from kgwe.kube.api import resources
from kgwe.kube.client import manifests
from kgwe.local.host import assets, ports
from kgwe.telemetry import http
from kgwe.telemetry.messages import Reply
from kgwe.telemetry.tls import Files, ReloadingContext

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from kgwe.certificates.authority import Pair
    from kgwe.kube.client.client import KubeClient
    from kgwe.telemetry.messages import Request

NAME: Final = "kgwe-webhook"
EXEMPT: Final = "bench-plain"
_SAMPLE: Final = re.compile(r"^(\S+) (\S+)$", re.MULTILINE)
_YEAR: Final = dt.timedelta(days=365)


async def configure(client: KubeClient, port: int, bundle: bytes = b"") -> None:
    """Point the webhook configuration of deploy/webhook.yaml at a port of this machine."""
    documents = manifests.load_manifests(assets.find_asset("deploy/webhook.yaml"))
    (body,) = [each for each in documents if each["kind"] == "MutatingWebhookConfiguration"]
    hook: dict[str, Any] = body["webhooks"][0]
    hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/mutate-v1-pod"}
    if bundle:
        hook["clientConfig"]["caBundle"] = base64.b64encode(bundle).decode()
    hook["namespaceSelector"]["matchExpressions"][0]["values"].append(EXEMPT)
    await remove(client)
    await client.create(resources.MUTATING_WEBHOOK_CONFIGURATION, body)


async def remove(client: KubeClient) -> None:
    with contextlib.suppress(errors.NotFound):
        await client.delete(resources.MUTATING_WEBHOOK_CONFIGURATION, NAME)


class WebhookProcess:
    """`kgwe webhook` as a process."""

    def __init__(self, kubeconfig: Path, folder: Path, settings: Mapping[str, str]) -> None:
        chosen = ports.allocate(("webhook", "metrics"))
        self.port, self._metrics_port = chosen["webhook"], chosen["metrics"]
        command = [sys.executable, "-m", "kgwe.cli", "webhook", "--kubeconfig", str(kubeconfig)]
        command += ["--bind-address", f"127.0.0.1:{self.port}", "--cert-dir", str(folder)]
        command += ["--metrics-bind-address", f"127.0.0.1:{self._metrics_port}"]
        env = {"KGWE_WEBHOOK_CERTIFICATES": "kgwe-webhook=127.0.0.1", "KGWE_WEBHOOK_EXEMPT_NAMESPACES": EXEMPT}
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, env={**os.environ, **env, **settings}, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when it answers and has read the decisions."""
        async with asyncio.timeout(timeout_s):
            while await self._ask("/readyz") is None:
                if self._process.poll() is not None:
                    raise errors.Permanent("kgwe webhook has ended; read its log")
                await asyncio.sleep(0.1)

    async def read_metric(self, name: str) -> float:
        """Return the value of a sample, labels included; 0 if there is none."""
        text = await self._ask("/metrics") or ""
        return next((float(value) for sample, value in _SAMPLE.findall(text) if sample == name), 0.0)

    async def _ask(self, path: str) -> str | None:
        try:
            async with httpx2.AsyncClient(timeout=5.0, trust_env=False) as client:
                reply = await client.get(f"http://127.0.0.1:{self._metrics_port}{path}")
        except httpx2.TransportError:
            return None
        return reply.text if reply.status_code == 200 else None  # noqa: PLR2004 - OK


def make_certificates(folder: Path, *, is_expired: bool = False) -> tuple[Files, bytes]:
    """Write a certificate for this machine; return its files and its authority."""
    now = dt.datetime.now(dt.UTC)
    maker = authority.make_authority("bench", now - _YEAR, 2 * _YEAR)
    issued_at, validity = (now - _YEAR, _YEAR / 2) if is_expired else (now, _YEAR)
    pair: Pair = authority.issue(maker, "bench", ("127.0.0.1",), issued_at, validity)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    return Files(folder / "tls.crt", folder / "tls.key"), maker.certificate


@contextlib.asynccontextmanager
async def serving(files: Files, answer: Callable[[Request], Any]) -> AsyncIterator[int]:
    """Serve with these certificates on a port of this machine; yield the port."""
    address = http.Address("127.0.0.1", 0)
    async with http.serving(answer, address, tls=ReloadingContext(files)) as port:
        yield port


def answer_garbage(_request: Request) -> Reply:
    return Reply(200, b'{"response": {"uid": 7, "allowed": "perhaps", "patch": "@@@"', "application/json")


async def answer_never(_request: Request) -> Reply:
    await asyncio.sleep(30)
    return Reply(503, b"")
