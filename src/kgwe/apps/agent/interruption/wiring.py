"""Builds the feature that reads interruption notices. Which cloud it is follows from the Node's providerID."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgwe.apps.agent.hooks import Feature, Task
from kgwe.apps.agent.interruption.watcher import InterruptionWatcher
from kgwe.cloud.notices.aws import AwsNotices
from kgwe.cloud.notices.azure import AzureNotices
from kgwe.cloud.notices.gcp import GcpNotices
from kgwe.kube.api.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.apps.agent.services import AgentServices
    from kgwe.cloud.notices.source import NoticeSource
    from kgwe.kube.client.client import KubeClient

_NODE: Final = Resource("", "v1", "nodes", "Node", namespaced=False, type=dict[str, Any])
_CLOUDS: Final[dict[str, Callable[..., AwsNotices | GcpNotices | AzureNotices]]] = {
    "aws": AwsNotices,
    "gcp": GcpNotices,
    "azure": AzureNotices,
}
_PREFIXES: Final = {"aws://": "aws", "gce://": "gcp", "azure://": "azure"}


def build_interruption(services: AgentServices) -> Feature | None:
    """Watch the notices of this node; None without an API server."""
    client, settings = services.client, services.settings
    if client is None or settings.cloud == "none":
        return None

    async def run() -> None:
        source = await open_source(client, services.node, settings.cloud, settings.metadata_url)
        if source is not None:
            watcher = InterruptionWatcher(
                client,
                services.node,
                source,
                interval_s=settings.notice_interval_seconds,
                failures=services.failures,
            )
            await watcher.run()

    return Feature(name="interruption", tasks=(Task("interruption", run),))


async def open_source(client: KubeClient, node: str, cloud: str, url: str) -> NoticeSource | None:
    """Return the source of this node's cloud; None on a machine of no known cloud."""
    if cloud == "auto":
        provider_id = (await client.get(_NODE, node)).get("spec", {}).get("providerID", "")
        cloud = next((name for prefix, name in _PREFIXES.items() if provider_id.startswith(prefix)), "")
    make = _CLOUDS.get(cloud)
    if make is None:
        return None
    return make(url) if url else make()
