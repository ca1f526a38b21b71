"""The clouds that this process can buy from, by the name in `spec.provider`. An SDK is imported if its cloud is set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe.cloud.kwok import KwokProvider

if TYPE_CHECKING:
    from kgwe.apps.autoscaler import cloud_settings
    from kgwe.apps.autoscaler.settings import Settings
    from kgwe.cloud.provider import Provider
    from kgwe.kube.client.client import KubeClient


def make_providers(client: KubeClient, settings: Settings) -> dict[str, Provider]:
    """Return the configured providers."""
    found: dict[str, Provider] = {"kwok": KwokProvider(client, cluster=settings.cluster, namespace=settings.namespace)}
    if settings.aws is not None:
        found["aws"] = _make_aws(settings.cluster, settings.aws)
    if settings.gcp is not None:
        found["gcp"] = _make_gcp(settings.cluster, settings.gcp)
    if settings.azure is not None:
        found["azure"] = _make_azure(settings.cluster, settings.azure)
    if settings.karpenter is not None:
        from kgwe.cloud.kubernetes.node_claims import KarpenterClaims  # noqa: PLC0415 - only where it is set

        found["custom"] = KarpenterClaims(client, cluster=settings.cluster, namespace=settings.namespace)
    return found


def _make_aws(cluster: str, said: cloud_settings.Aws) -> Provider:
    from kgwe.cloud.aws.client import AwsSettings  # noqa: PLC0415
    from kgwe.cloud.aws.fleets import AwsFleets  # noqa: PLC0415
    from kgwe.cloud.aws.groups import AwsGroups  # noqa: PLC0415

    settings = AwsSettings(
        cluster=cluster, region=said.region, subnets=said.subnets, endpoint_url=said.endpoint_url or None
    )
    return AwsGroups(settings) if said.groups else AwsFleets(settings)


def _make_gcp(cluster: str, said: cloud_settings.Gcp) -> Provider:
    from kgwe.cloud.gcp.bulk import GcpBulk  # noqa: PLC0415
    from kgwe.cloud.gcp.client import GcpGroup, GcpSettings  # noqa: PLC0415
    from kgwe.cloud.gcp.groups import GcpGroups  # noqa: PLC0415
    from kgwe.cloud.provider import CapacityType  # noqa: PLC0415

    groups = {
        pool: GcpGroup(
            name=each.name,
            zone=each.zone,
            instance_type=each.instance_type,
            capacity_type=CapacityType(each.capacity_type),
        )
        for pool, each in said.groups.items()
    }
    settings = GcpSettings(cluster=cluster, project=said.project, groups=groups, endpoint=said.endpoint)
    return GcpGroups(settings) if groups else GcpBulk(settings)


def _make_azure(cluster: str, said: cloud_settings.Azure) -> Provider:
    from kgwe.cloud.azure.client import AzureScaleSet, AzureSettings  # noqa: PLC0415
    from kgwe.cloud.azure.scale_sets import AzureScaleSets  # noqa: PLC0415
    from kgwe.cloud.provider import CapacityType  # noqa: PLC0415

    scale_sets = {
        pool: AzureScaleSet(name=each.name, capacity_type=CapacityType(each.capacity_type), limit=each.limit)
        for pool, each in said.scale_sets.items()
    }
    return AzureScaleSets(
        AzureSettings(
            cluster=cluster,
            subscription=said.subscription,
            resource_group=said.resource_group,
            scale_sets=scale_sets,
            endpoint=said.endpoint,
        )
    )
