"""Two replicas of the webhook that admit only the API server: either may die, and pods are changed all the same."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.bench.admission import pods, webhooks
from kgwe.kube.api import resources
from kgwe.kube.client import manifests
from kgwe.local.cluster import certificates
from kgwe.local.cluster.cluster import service_account_kubeconfig
from kgwe.local.host import assets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.clusters.bed import Bed

pytestmark = pytest.mark.slow

NAMESPACE = "sized"
POLICY = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings/kgwe-rightsizing"


class Balancer:
    """One address in front of several ports, as a Service: each connection goes to the next one that answers."""

    def __init__(self, *ports: int) -> None:
        self._ports = ports
        self._turns = itertools.cycle(range(len(ports)))
        self._piping: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in self._piping:
                task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self._ports:
            with contextlib.suppress(OSError):
                behind = await asyncio.open_connection("127.0.0.1", self._ports[next(self._turns)])
                ways = ((reader, behind[1]), (behind[0], writer))
                self._piping |= {asyncio.create_task(_pipe(*way)) for way in ways}
                return
        writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def without_policy(bed: Bed) -> AsyncIterator[None]:
    """As on a cluster before Kubernetes 1.36: only the webhook changes pods."""
    with contextlib.suppress(errors.NotFound):
        await bed.client.request("DELETE", POLICY)
    try:
        yield
    finally:
        await webhooks.remove(bed.client)
        documents = manifests.load_manifests(assets.find_asset("deploy/rightsizing.yaml"))
        await manifests.apply_manifest(bed.client, documents)


def replica(bed: Bed, folder: Path) -> webhooks.WebhookProcess:
    """A process with the rights of deploy/webhook.yaml."""
    account = service_account_kubeconfig(bed.cluster, "kgwe-system", "kgwe-webhook", folder.with_suffix(".kubeconfig"))
    settings = {
        "KGWE_WEBHOOK_CLIENT_CA_FILE": str(bed.cluster.layout.certificates.authority),
        "KGWE_WEBHOOK_CLIENT_NAMES": certificates.SERVER.user,
        "KGWE_WEBHOOK_CHECK_SECONDS": "0.5",
    }
    return webhooks.WebhookProcess(account, folder, settings)


async def create(bed: Bed) -> dict[str, Any]:
    """The pod as it was stored; it is created whatever the webhook does."""
    made: Any = await bed.client.create(resources.POD, pods.build_pod(), NAMESPACE)
    return dict(made.spec.containers[0].resources.limits)


async def until_changed_by(bed: Bed, process: webhooks.WebhookProcess) -> None:
    """Create pods until this replica has changed one more of them."""
    name = 'kgwe_webhook_requests_total{outcome="changed"}'
    before = await process.read_metric(name)
    async with asyncio.timeout(PATIENCE_S):
        while await process.read_metric(name) == before:
            # At the same time: the API server uses one connection for calls that follow each other.
            await asyncio.gather(*(create(bed) for _ in range(8)), return_exceptions=True)


async def test_either_of_two_replicas_answers_the_api_server_and_nobody_else(bed: Bed, tmp_path: Path) -> None:
    documents = manifests.load_manifests(assets.find_asset("deploy/webhook.yaml"))
    own = [each for each in documents if each["kind"] != "MutatingWebhookConfiguration"]
    await manifests.apply_manifest(bed.client, own)
    await bed.client.apply(resources.NAMESPACE, {"metadata": {"name": NAMESPACE}})
    await bed.client.apply(resources.RIGHTSIZING_DECISION, pods.build_decisions(), NAMESPACE)
    async with without_policy(bed):
        replicas = [replica(bed, tmp_path / name) for name in ("one", "two")]
        try:
            for each in replicas:
                await each.wait_ready(PATIENCE_S)
            async with Balancer(*(each.port for each in replicas)).listening() as port:
                await webhooks.configure(bed.client, port)
                for each in replicas:
                    await until_changed_by(bed, each)

                # A client without the certificate of the API server gets no answer.
                trusting = ssl.create_default_context(cafile=str(tmp_path / "one" / "ca.crt"))
                async with httpx2.AsyncClient(timeout=PATIENCE_S, verify=trusting) as client:
                    with pytest.raises(httpx2.TransportError):
                        await client.post(f"https://127.0.0.1:{port}/mutate-v1-pod", json={})

                replicas[0].kill()
                await until_changed_by(bed, replicas[1])
                replicas[1].kill()
                assert "nvidia.com/gpu" in await create(bed), "created as it is"
        finally:
            for each in replicas:
                each.kill()
            await bed.client.delete(resources.RIGHTSIZING_DECISION, "default", NAMESPACE)
