"""The scheduler's webhook for pods of gangs (deploy/gang-seats.yaml) on a local cluster: it has a loopback port."""

from __future__ import annotations

import base64
import contextlib
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.client import manifests
from kgwe.local.host import assets
from kgwe.local.host.ports import LOOPBACK

if TYPE_CHECKING:
    from kgwe.kube.client.client import KubeClient
    from kgwe.local.cluster.cluster import LocalCluster

NAME: Final = "kgwe-gang-seats"
#: of namespaces whose gangs get their seats at creation
LABEL: Final = {"kgwe.nvidia.io/seats-at-creation": "enabled"}


def build_environment(port: int) -> dict[str, str]:
    """Return settings of a scheduler that serves the webhook on this port, for the API server's client certificate."""
    return {"KGWE_SCHEDULER_ADMISSION_BIND_ADDRESS": f"{LOOPBACK}:{port}"}


async def configure(client: KubeClient, cluster: LocalCluster, port: int) -> None:
    """Let the API server call the port."""
    documents = manifests.load_manifests(assets.find_asset("deploy/gang-seats.yaml"))
    (body,) = [each for each in documents if each["kind"] == "MutatingWebhookConfiguration"]
    hook: dict[str, Any] = body["webhooks"][0]
    path = hook["clientConfig"]["service"]["path"]
    bundle = base64.b64encode(cluster.layout.certificates.authority.read_bytes()).decode()
    hook["clientConfig"] = {"url": f"https://{LOOPBACK}:{port}{path}", "caBundle": bundle}
    await remove(client)
    await client.create(resources.MUTATING_WEBHOOK_CONFIGURATION, body)


async def remove(client: KubeClient) -> None:
    with contextlib.suppress(errors.NotFound):
        await client.delete(resources.MUTATING_WEBHOOK_CONFIGURATION, NAME)
