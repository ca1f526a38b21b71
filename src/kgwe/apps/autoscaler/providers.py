"""The clouds that this process can buy from, by the name in `spec.provider`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.cloud.kwok import KwokProvider

if TYPE_CHECKING:
    from kgwe.apps.autoscaler.settings import Settings
    from kgwe.cloud.provider import Provider
    from kgwe.kube.client.client import KubeClient


def make_providers(client: KubeClient, settings: Settings) -> dict[str, Provider]:
    """Return the configured providers."""
    return {"kwok": KwokProvider(client, cluster=settings.cluster, namespace=settings.namespace)}
